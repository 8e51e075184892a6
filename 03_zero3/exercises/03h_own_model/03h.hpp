#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <zero/distributed/communicator.hpp>

/// ZeRO-3 for a model of torch::nn modules, some of which are units.
namespace exercise_03h {

/// Trains a model on one rank: see task.md. The model knows only this.
struct Method {
  virtual ~Method() = default;
  /// Runs the body of a unit's forward, and returns the unit's output. May stand inside the body
  /// of another unit, and be called several times for a unit.
  virtual at::Tensor run(int unit, const std::function<at::Tensor()>& body) = 0;
  /// Called when autograd is done.
  virtual void end_backward() = 0;
  /// A step of gradient descent: weight -= rate * gradient. Afterwards there are no gradients.
  virtual void update(double rate) = 0;
};

/// The modules that are units, by number. Unit 0 is the root, which contains all; each unit stands
/// behind those that contain it.
using Units = std::vector<std::shared_ptr<torch::nn::Module>>;

/// What an answer consists of: it makes your method. `ranks` and the modules outlive it; all ranks
/// have made the modules with the same values.
struct Answer {
  std::unique_ptr<Method> (*zero3)(zero::dist::Communicator& ranks, const Units& units);
};

// ---- the model of the grader

enum { kRoot, kBody, kEmbedding, kFirst, kSecond };
constexpr int kWords = 10, kTokens = 12, kWidth = 6;

struct Embedding : torch::nn::Module {
  at::Tensor positions = register_parameter("positions", at::randn({kTokens, kWidth}));
  torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(kWords, kWidth));
};

struct Block : torch::nn::Module {
  explicit Block(int hidden)
      : up(register_module("up", torch::nn::Linear(kWidth, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(up(norm(x)).tanh()); }

  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear up, down;
};

/// The output layer, no unit of its own. Its weight is that of the embedding.
struct Head : torch::nn::Module {
  explicit Head(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {}
  at::Tensor weight;
};

struct Body : torch::nn::Module {
  std::shared_ptr<Embedding> embedding =
      register_module("embedding", std::make_shared<Embedding>());
  std::shared_ptr<Block> first = register_module("first", std::make_shared<Block>(8));
  std::shared_ptr<Block> second = register_module("second", std::make_shared<Block>(9));
  std::shared_ptr<Head> head =
      register_module("head", std::make_shared<Head>(embedding->tokens->weight));
};

struct Net : torch::nn::Module {
  std::shared_ptr<Body> body = register_module("body", std::make_shared<Body>());
  torch::nn::Linear last = register_module("last", torch::nn::Linear(kWords, kWords));

  Units units() { return {shared_from_this(), body, body->embedding, body->first, body->second}; }

  at::Tensor forward(Method& method, const at::Tensor& ids, bool takes_branch) {
    return method.run(kRoot, [&] {
      return last(method.run(kBody, [&] {
        at::Tensor x = method.run(
            kEmbedding, [&] { return body->embedding->tokens(ids) + body->embedding->positions; });
        for (int use = 0; use < 2; ++use) {
          x = method.run(kFirst, [&] { return body->first->forward(x); });
        }
        x = method.run(kSecond, [&] { return takes_branch ? body->second->forward(x) : x; });
        return x.mm(body->head->weight.t());
      }));
    });
  }
};

}  // namespace exercise_03h

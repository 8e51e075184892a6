#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <zero/nn/checkpoint.hpp>

/// The model of the loops, of LibTorch's own layers.
namespace zero::testing::loops {

inline constexpr std::int64_t kInputs = 6;
inline constexpr std::int64_t kWidth = 7;
inline constexpr std::int64_t kOutputs = 3;
inline constexpr std::int64_t kSamples = 4;

/// A unit: x + tanh of a linear layer, and what a loop adds.
struct Block : nn::Unit {
  explicit Block(std::int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto body = [this](const at::Tensor& in) {
      const at::Tensor y = in + linear->forward(in).tanh();
      return dropout > 0 ? at::dropout(y, dropout, /*train=*/true) : y;
    };
    return run([&] {
      if (!checkpointed) return body(x);
      return nn::checkpoint([body](const std::vector<at::Tensor>& in) { return body(in[0]); }, {x});
    });
  }
  torch::nn::Linear linear;
  double dropout = 0;
  bool checkpointed = false;
};

struct NetOptions {
  std::int64_t inputs = kInputs;
  std::int64_t outputs = kOutputs;
  int blocks = 2;
  std::uint64_t seed = 1;
};

/// Blocks between a first and a last layer, which belong to the root.
struct Net : BatchModel {
  explicit Net(const NetOptions& options = {}) {
    torch::manual_seed(options.seed);
    first = register_module("first", torch::nn::Linear(options.inputs, kWidth));
    for (int b = 0; b < options.blocks; ++b) {
      blocks.push_back(register_module(fmt::format("block{}", b), std::make_shared<Block>(kWidth)));
    }
    last = register_module("last", torch::nn::Linear(kWidth, options.outputs));
  }
  at::Tensor features(const at::Tensor& inputs) {
    at::Tensor x = first->forward(inputs).tanh();
    for (const auto& block : blocks) x = block->forward(x);
    return x;
  }
  at::Tensor outputs(const at::Tensor& inputs) { return last->forward(features(inputs)); }
  at::Tensor predict(const at::Tensor& inputs) {
    return run([&] { return outputs(inputs); });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return run([&] {
      return objective ? objective(batch) : at::mse_loss(outputs(batch.inputs), batch.targets);
    });
  }

  torch::nn::Linear first = nullptr;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::Linear last = nullptr;
  /// Replaces the loss, the mean squared error; runs inside the root's run().
  std::function<at::Tensor(const data::Batch& batch)> objective;
};

/// The same values for the same numbers, everywhere.
inline at::Tensor noise(at::IntArrayRef sizes, int rank, int step, int what = 0) {
  const auto seed = static_cast<std::uint64_t>(10'000 * what + 100 * rank + step + 1);
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}
/// Batch `step` of rank `rank`: float targets.
inline data::Batch batch_of(int rank, int step, std::int64_t samples = kSamples) {
  return {.inputs = noise({samples, kInputs}, rank, step, 1),
          .targets = noise({samples, kOutputs}, rank, step, 2)};
}
/// The same with labels.
inline data::Batch labelled(int rank, int step, std::int64_t samples = kSamples) {
  const auto seed = static_cast<std::uint64_t>(100 * rank + step + 77);
  return {.inputs = noise({samples, kInputs}, rank, step, 1),
          .targets =
              at::randint(0, kOutputs, {samples}, at::detail::createCPUGenerator(seed), at::kLong)};
}

inline optim::OptimizerFactory adam(double rate = 0.02) {
  return wrapped<torch::optim::Adam>(torch::optim::AdamOptions(rate));
}
inline optim::OptimizerFactory sgd(double rate = 0.1) {
  return wrapped<torch::optim::SGD>(torch::optim::SGDOptions(rate).momentum(0.9));
}

inline constexpr int kSteps = 3;
/// Kept of parameters, by index: the part that this process updates.
using Parts = std::map<std::size_t, at::Tensor>;
using Tensors = std::vector<at::Tensor>;
/// One list after the other.
inline Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace zero::testing::loops

#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/plain_ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/torch_optimizer.hpp>

#include "plain_modules.hpp"

namespace zero::testing {

inline std::unique_ptr<optim::Optimizer> wrapped_adamw(const std::vector<at::Tensor>& parameters) {
  return optim::wrap(
      std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01)));
}

inline EngineConfig at_stage(int stage) { return {.stage = stage}; }

/// One rank that trains a module of plain_modules.hpp, plain or of units, with an engine.
struct PlainRun {
  PlainRun(dist::Communicator& communicator, const std::string& name, const EngineConfig& config,
           const optim::OptimizerFactory& optimizer = wrapped_adamw)
      : PlainRun(communicator, make(name), config, optimizer) {}
  PlainRun(dist::Communicator& communicator, const PlainModule& module, const EngineConfig& config,
           const optim::OptimizerFactory& optimizer = wrapped_adamw)
      : rank(communicator.rank()),
        made(module),
        engine(*made.module, communicator, optimizer, config, nn::default_units(/*bytes=*/1)) {}
  static PlainModule make(const std::string& name) {
    at::manual_seed(7);
    return plain_case(name).make();
  }
  at::Tensor forward() { return engine.forward(made.loss, made.loss_terms); }
  void backward(int number) {
    at::manual_seed(100 * number + rank);
    engine.backward(forward());
  }
  bool step(int number) {
    backward(number);
    return engine.step();
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  PlainModule made;
  Engine engine;
};

/// The measure: such a module trained without an engine, on the batches of all ranks.
struct Alone : PlainRanks {
  Alone(int ranks, const std::string& name,
        const optim::OptimizerFactory& optimizer = optim::adamw())
      : Alone(ranks, PlainRun::make(name), optimizer) {}
  Alone(int ranks, const PlainModule& module, const optim::OptimizerFactory& optimizer)
      : PlainRanks(module.module->parameters(), ranks, optimizer),
        ranks(ranks),
        made(module),
        parameters(made.module->parameters()) {}
  /// The averaged gradients of step `number`; `before` is called for each rank.
  void backward(
      int number, const std::function<void(int)>& before = [](int) {}) {
    mean_loss = 0;
    PlainRanks::backward([&](int rank) {
      before(rank);
      at::manual_seed(100 * number + rank);
      const at::Tensor loss = made.loss();
      mean_loss += loss.item<double>();
      return loss;
    });
    mean_loss /= ranks;
    average();
  }
  void step(int number) {
    backward(number);
    update();
  }
  int ranks;
  PlainModule made;
  std::vector<at::Tensor> parameters;
  double mean_loss = 0;
};

}  // namespace zero::testing

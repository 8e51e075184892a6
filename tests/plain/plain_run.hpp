#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <string>
#include <vector>

#include <tests/support/same_bits.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine/engine.hpp>
#include <zero/optim/torch_optimizer.hpp>

#include "plain_modules.hpp"

namespace zero::testing {

inline std::unique_ptr<torch::optim::Optimizer> torch_adamw(
    const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
}
inline std::unique_ptr<optim::Optimizer> wrapped_adamw(const std::vector<at::Tensor>& parameters) {
  return optim::wrap(torch_adamw(parameters));
}

inline EngineConfig at_stage(int stage) { return {.overlap = {.stage = stage}}; }

/// One rank that trains a plain module with an engine.
struct PlainRun {
  PlainRun(dist::Communicator& communicator, const std::string& name, const EngineConfig& config,
           const optim::OptimizerFactory& optimizer = wrapped_adamw)
      : rank(communicator.rank()),
        made(make(name)),
        engine(*made.module, communicator, optimizer, config, plain_case(name).units) {}
  static PlainModule make(const std::string& name) {
    at::manual_seed(7);
    return plain_case(name).make();
  }
  bool step(int number) {
    at::manual_seed(100 * number + rank);
    engine.backward(engine.forward(made.loss));
    return engine.step();
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  PlainModule made;
  Engine engine;
};

/// Trains `run`, on one rank, and `alone` without an engine; expects the same weights.
inline void expect_trains_as_alone(PlainRun& run, const PlainModule& alone, int steps) {
  const auto optimizer = torch_adamw(alone.module->parameters());
  for (int number = 0; number < steps; ++number) {
    run.step(number);
    at::manual_seed(100 * number);
    optimizer->zero_grad();
    alone.loss().backward();
    optimizer->step();
  }
  EXPECT_TRUE(same_bits(run.weights(), alone.module->parameters()));
}

}  // namespace zero::testing

#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <string>
#include <vector>

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

}  // namespace zero::testing

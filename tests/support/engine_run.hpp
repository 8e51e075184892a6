#pragma once

#include <limits>
#include <utility>
#include <vector>

#include <zero/engine.hpp>
#include <zero/optim/adamw.hpp>

#include "batch_model.hpp"
#include "moved_to.hpp"
#include "toy.hpp"
#include "whole_weights.hpp"

namespace zero::testing {

/// One rank that trains the toy with an engine.
struct EngineRun {
  EngineRun(dist::Communicator& communicator, const EngineConfig& config,
            const optim::OptimizerFactory& optimizer = optim::adamw(),
            at::ScalarType dtype = at::kFloat, std::vector<std::int64_t> hidden = {17, 11},
            at::Device device = at::kCPU)
      : rank(communicator.rank()),
        device(device),
        toy(on(device, {.hidden = std::move(hidden), .dtype = dtype})),
        engine(*toy.model, communicator, optimizer, config, nn::default_units(), &toy.values) {}
  static Toy on(at::Device device, const tools::MlpConfig& config) {
    Toy toy(config);
    move_to(device, *toy.model);
    return toy;
  }

  data::Batch batch(int number) const { return moved_to(device, toy.batch(rank, number)); }
  at::Tensor forward(int number) { return forward_batch(engine, batch(number)); }
  /// A micro-batch and what step() says to it.
  bool step(const data::Batch& batch) {
    engine.backward(forward_batch(engine, batch));
    return engine.step();
  }
  bool step(int number) { return step(batch(number)); }
  void steps(int first, int last) {
    for (int number = first; number < last; ++number) step(number);
  }
  /// From now on an element of the second parameter's gradient is infinite on this rank, or not.
  void make_gradient_infinite(bool infinite) {
    engine.strategy().passes().observe_gradients(
        [infinite](std::size_t i, const at::Tensor& gradient) {
          if (!infinite || i != 1) return;
          gradient.detach().view({-1})[0].fill_(std::numeric_limits<double>::infinity());
        });
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  at::Device device;
  Toy toy;
  Engine engine;
};

}  // namespace zero::testing

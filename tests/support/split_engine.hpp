#pragma once

#include <memory>

#include <zero/engine.hpp>

#include "split_run.hpp"

namespace zero::testing {

/// An engine over a Llama model that is split over a tensor axis.
struct SplitEngine {
  SplitEngine(const TwoAxes& axes, int stage)
      : values(3),
        model(make_deferred<nn::Llama>(llama_to_split(),
                                       nn::TensorParallel(axes.mesh.tensor(), /*sequence=*/true))),
        engine(*model, axes.mesh, optim::adamw(), {.stage = stage}, nn::default_units(), &values),
        rank(axes.data->rank()) {}
  at::Tensor forward(int number) { return forward_batch(engine, split_batch(rank, number)); }
  void step(int number) {
    engine.backward(forward(number));
    engine.step();
  }

  nn::SeededValues values;
  std::shared_ptr<nn::Llama> model;
  Engine engine;
  int rank;
};

}  // namespace zero::testing

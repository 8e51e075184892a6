#pragma once

#include <chrono>

#include <zero/train/strategy.hpp>

namespace exercise_01f {

/// Seconds of a step on one rank, without gaps and without counting any twice, and what was sent.
struct Phases {
  double forward = 0;
  double backward = 0;
  double communication = 0;  ///< this rank was starting collectives or waiting for them
  double optimizer = 0;
  std::int64_t bytes = 0;  ///< that this rank has sent

  double sum() const { return forward + backward + communication + optimizer; }
};

/// What an answer consists of.
struct Answer {
  /// Runs one training step, of the loss that the function computes, and measures it. Called by all
  /// ranks.
  Phases (*profiled_step)(zero::train::Strategy& strategy,
                          const std::function<at::Tensor()>& loss_of_model);
};

}  // namespace exercise_01f

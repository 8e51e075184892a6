#pragma once

#include <torch/types.h>

#include <cmath>

#include <zero/distributed/communicator.hpp>

namespace exercise_04c {

/// What a rank keeps from step to step.
struct State {
  at::Tensor master;  ///< float32 copy of this rank's shard of the parameters
  at::Tensor mean;    ///< AdamW's moments of the shard, float32
  at::Tensor square;
  int steps = 0;  ///< how many were made
};

/// Updates `weight` and both moments in place, and computes in their dtypes. `step` counts from 1.
/// Each operation rounds correctly, so a shard gets the bits of the whole tensor.
inline void adamw(at::Tensor weight, const at::Tensor& gradient, at::Tensor mean, at::Tensor square,
                  int step) {
  constexpr double kLearningRate = 0.001, kDecay = 0.01, kBeta1 = 0.9, kBeta2 = 0.999;
  mean.mul_(kBeta1).add_(gradient * (1 - kBeta1));
  square.mul_(kBeta2).add_(gradient.square() * (1 - kBeta2));
  const at::Tensor root = (square / (1 - std::pow(kBeta2, step))).to(at::kDouble).sqrt();
  const at::Tensor direction = mean / (1 - std::pow(kBeta1, step)) / (root.to(at::kFloat) + 1e-8);
  weight.mul_(1 - kLearningRate * kDecay).sub_(direction * kLearningRate);
}

/// What an answer consists of.
struct Answer {
  /// Returns the state of this rank before the first step. `parameters`: all P of them, flat and
  /// bfloat16, the same on every rank; N divides P. Rank r updates shard r of N equal ones.
  State (*make_state)(zero::dist::Communicator& communicator, const at::Tensor& parameters);
  /// Makes one step: writes new values into `parameters`, the same on every rank. `gradient`: this
  /// rank's, P bfloat16. Called by all ranks.
  void (*step)(zero::dist::Communicator& communicator, State& state, at::Tensor parameters,
               const at::Tensor& gradient);
};

}  // namespace exercise_04c

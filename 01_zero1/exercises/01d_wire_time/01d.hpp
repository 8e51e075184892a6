#pragma once

#include <torch/types.h>

#include <algorithm>
#include <functional>

#include <zero/distributed/agreement.hpp>

namespace exercise_01d {

/// What a step costs, the same on all ranks.
struct Cost {
  /// Seconds that a link of 1 Gbit/s (10^9 bits a second) needs for what the rank that sends most
  /// has sent in the step.
  double wire = 0;
  /// Seconds of the slowest rank by its clock, from when all ranks are ready.
  double clock = 0;
};

/// The clock of a rank: seconds since some moment. Elsewhere it would read
/// std::chrono::steady_clock. Here the grader passes one that it sets forward itself, so that it
/// knows the right figure and waits for nothing.
using Clock = std::function<double()>;

/// A model of a rank: flat, n floats each, n a multiple of N. The rank owns piece `rank` of N.
struct Model {
  at::Tensor parameters;
  at::Tensor gradient;  ///< of this rank's batch
};

/// The piece of `flat` that this rank owns: a view.
inline at::Tensor own_piece(const at::Tensor& flat, const zero::dist::Communicator& communicator) {
  const std::int64_t each = flat.numel() / communicator.size();
  return flat.narrow(0, communicator.rank() * each, each);
}

/// Updates `parameters` by the averaged gradient of the same elements.
inline void update(at::Tensor parameters, const at::Tensor& average) {
  parameters.sub_(average, 0.1);
}

/// A step of ZeRO-1 as it is often drawn: every rank gets the average of the whole gradient,
/// updates its own piece of the parameters, and gathers the other pieces.
inline void naive_step(zero::dist::Communicator& communicator, Model& model) {
  communicator.all_reduce(model.gradient, zero::dist::Purpose::kGradient).wait();
  at::Tensor mine = own_piece(model.parameters, communicator);
  update(mine, own_piece(model.gradient, communicator));
  communicator.all_gather(model.parameters, mine, zero::dist::Purpose::kParameter).wait();
}

/// What an answer consists of.
struct Answer {
  /// Runs `step`, which is collective, and returns what it costs. Called by all ranks. May exchange
  /// what it has measured; this is not part of the cost.
  Cost (*measure)(zero::dist::Communicator& communicator, const Clock& now,
                  const std::function<void()>& step);

  /// Leaves the parameters that naive_step() leaves, and sends a third less. Called by all ranks.
  void (*zero1_step)(zero::dist::Communicator& communicator, Model& model);
};

}  // namespace exercise_01d

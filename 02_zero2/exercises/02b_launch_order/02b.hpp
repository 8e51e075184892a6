#pragma once

#include <algorithm>
#include <functional>
#include <vector>

namespace exercise_02b {

/// What a rank knows of the gradients of a step. New at the start of training, and then kept.
struct Schedule {
  explicit Schedule(int n) : count(n), ready(static_cast<std::size_t>(n)) {}
  int count;                ///< of gradients, numbered 0 to count - 1 in the order of forward
  std::vector<bool> ready;  ///< by gradient
  int launched = 0;
};

/// Starts the reduction of a gradient. All ranks must call it in the same order.
using Launch = std::function<void(int gradient)>;

/// What an answer consists of.
struct Answer {
  /// Called by autograd when a gradient is complete, on each rank in an order of its own, once a
  /// step at most.
  void (*gradient_ready)(Schedule& schedule, int gradient, const Launch& launch);
  /// Called once backward is over. Gradients that did not come on this rank count as zeros.
  void (*backward_done)(Schedule& schedule, const Launch& launch);
};

}  // namespace exercise_02b

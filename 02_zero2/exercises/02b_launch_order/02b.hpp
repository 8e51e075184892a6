#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace exercise_02b {

/// A std::vector<bool> whose [] throws std::out_of_range for a gradient that does not exist.
class Flags : public std::vector<bool> {
 public:
  using std::vector<bool>::vector;
  using std::vector<bool>::operator=;
  reference operator[](std::int64_t gradient) { return *(begin() + existing(gradient)); }
  bool operator[](std::int64_t gradient) const { return *(begin() + existing(gradient)); }

 private:
  std::ptrdiff_t existing(std::int64_t gradient) const {
    if (0 <= gradient && gradient < static_cast<std::int64_t>(size())) return gradient;
    throw std::out_of_range(
        "looks at gradient " + std::to_string(gradient) +
        (gradient < 0 ? ": stop when all are launched" : ", which is not there"));
  }
};

/// What a rank knows of the gradients of a step. New at the start of training, and then kept.
struct Schedule {
  explicit Schedule(int n) : count(n), ready(static_cast<std::size_t>(n)) {}
  int count;    ///< of gradients, numbered 0 to count - 1 in the order of forward
  Flags ready;  ///< by gradient
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

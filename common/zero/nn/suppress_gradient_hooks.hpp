#pragma once

#include <utility>

namespace zero::nn {

/// While it lives, the callbacks of on_gradient_ready() stay silent on this thread: for a backward
/// pass inside another one, after which the outer one has more to add to the same gradients and
/// will say itself when they are whole.
class SuppressGradientHooks {
 public:
  SuppressGradientHooks() : previous_(std::exchange(active_, true)) {}
  ~SuppressGradientHooks() { active_ = previous_; }
  SuppressGradientHooks(const SuppressGradientHooks&) = delete;
  SuppressGradientHooks& operator=(const SuppressGradientHooks&) = delete;

  /// True inside a scope.
  static bool active() { return active_; }

 private:
  bool previous_;
  static inline thread_local bool active_ = false;
};

}  // namespace zero::nn

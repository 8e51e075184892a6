#pragma once

#include <utility>

namespace zero::nn {

/// While it lives, the callbacks of on_gradient_ready() are not called on this thread: for a
/// backward pass inside another one. The outer one adds more to the same gradients and calls them
/// when these are complete.
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

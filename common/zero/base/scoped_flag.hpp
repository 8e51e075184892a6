#pragma once

#include <utility>

namespace zero {

/// A flag that is set on this thread while an object lives. Each `Tag` is a flag of its own.
template <typename Tag>
class ScopedFlag {
 public:
  ScopedFlag() : before_(std::exchange(active_, true)) {}
  ~ScopedFlag() { active_ = before_; }
  ScopedFlag(const ScopedFlag&) = delete;
  ScopedFlag& operator=(const ScopedFlag&) = delete;

  /// True inside a scope.
  static bool active() { return active_; }

 private:
  bool before_;
  static inline thread_local bool active_ = false;
};

}  // namespace zero

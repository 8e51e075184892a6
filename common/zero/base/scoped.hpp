#pragma once

#include <utility>

namespace zero {

/// Sets `place` to another value and restores it at the end of the scope, also after an exception.
template <typename T>
class ScopedValue {
 public:
  ScopedValue(T& place, T value) : place_(place), before_(std::exchange(place, value)) {}
  ~ScopedValue() { place_ = before_; }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& place_;
  T before_;
};

/// A flag that is set on this thread while an object lives. Each `Tag` is a flag of its own.
template <typename Tag>
class ScopedFlag : ScopedValue<bool> {
 public:
  ScopedFlag() : ScopedValue(active_, true) {}
  /// True inside a scope.
  static bool active() { return active_; }

 private:
  static inline thread_local bool active_ = false;
};

}  // namespace zero

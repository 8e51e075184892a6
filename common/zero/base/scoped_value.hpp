#pragma once

#include <utility>

namespace zero {

/// While it lives, `place` has another value; also where an exception ends it.
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

}  // namespace zero

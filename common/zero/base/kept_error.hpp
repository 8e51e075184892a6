#pragma once

#include <exception>
#include <utility>

namespace zero::base {

/// The first error of this rank, kept while other ranks are in the middle of collectives: thrown
/// there, they would wait for this one.
class KeptError {
 public:
  /// Runs `action`. Keeps its error, unless there is one already.
  template <typename Action>
  void keep(const Action& action) {
    try {
      action();
    } catch (const std::exception&) {
      if (!error_) error_ = std::current_exception();
    }
  }
  bool is_there() const { return error_ != nullptr; }
  /// Throws the error, if there is one, and forgets it.
  void rethrow() {
    if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace zero::base

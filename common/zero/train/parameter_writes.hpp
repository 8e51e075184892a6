#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace zero::train {

/// What the program itself has written into parameters, on this rank, since ranks last compared it
/// (Step::end()): all must write the same.
class ParameterWrites {
 public:
  /// `parameter` has its new values, all of them.
  void add(const std::string& name, const at::Tensor& parameter);
  /// The write into this parameter does not count. The first one stays an error.
  void refuse(const std::string& name, const std::string& when);
  void add(const ParameterWrites& others);
  void forget() { digests_.clear(); }

  /// A line for each written parameter.
  std::string text() const;
  /// The error of a write that does not count; empty if all count.
  const std::string& refused() const { return refused_; }

 private:
  std::map<std::string, std::uint64_t> digests_;  // by name: of all values that were written
  std::string refused_;
};

}  // namespace zero::train

#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace zero::train {

/// A number that another one follows if any bit of `tensor` changes, or two elements change places.
/// On a device it is copied to the host.
std::uint64_t digest_of_bits(const at::Tensor& tensor);

/// What the program itself has written into parameters, on this rank, since ranks last compared it
/// (Step::end()) or values were loaded: all must write the same.
class ParameterWrites {
 public:
  /// `parameter` has its new values, all of them.
  void add(const std::string& name, const at::Tensor& parameter);
  /// The write into this parameter does not count: an error until forget().
  void refuse(const std::string& name, const std::string& when);
  void add(const ParameterWrites& others);
  void forget() { *this = {}; }

  /// A line for each written parameter.
  std::string text() const;
  /// The error of a write that does not count; empty if all count.
  const std::string& refused() const { return refused_; }

 private:
  std::map<std::string, std::uint64_t> digests_;  // by name: of all values that were written
  std::string refused_;
};

}  // namespace zero::train

#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <zero/distributed/statement.hpp>
#include <zero/nn/parameters.hpp>

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

  /// What must be the same on all ranks, for an exchange: a line for each written parameter. Tensor
  /// ranks write other values into their parts.
  dist::Statement::Topic topic() const;
  /// The error of a write that does not count; empty if all count.
  const std::string& refused() const { return refused_; }

 private:
  std::map<std::string, std::uint64_t> digests_;  // by name: of all values that were written
  std::string refused_;
};

/// What scopes of Strategy::unshard() have shown of units, so that a write through data() is
/// noticed, which does not change the version counter.
class ShownValues {
 public:
  /// `list` must outlive this object.
  explicit ShownValues(const nn::ParameterList& list) : list_(list) {}
  /// A scope shows the parameters of `unit`.
  void note(std::size_t unit) { shown_[unit] = digests(unit); }
  /// The last scope of the unit ends: raises the version counters of parameters whose values have
  /// changed, so that the write is found. Not on a device, where the host would wait for them.
  void note_writes(std::size_t unit);

 private:
  std::vector<std::uint64_t> digests(std::size_t unit) const;

  const nn::ParameterList& list_;
  std::map<std::size_t, std::vector<std::uint64_t>> shown_;  // by unit: of its parameters
};

}  // namespace zero::train

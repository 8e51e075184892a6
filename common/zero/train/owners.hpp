#pragma once

#include <cstdint>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/ownership.hpp>

namespace zero::train {

/// Which rank owns which whole parameter, and how many bytes that makes. For the chapters that
/// shard by whole parameters.
class Owners {
 public:
  Owners(const nn::ParameterList& list, const dist::Communicator& communicator,
         Ownership ownership);

  int of(std::size_t index) const { return owners_[index]; }
  bool mine(std::size_t index) const { return owners_[index] == rank_; }

  /// Bytes of the parameters that this rank owns (o_r of the traffic formulas).
  std::int64_t bytes() const { return bytes_; }
  /// The trainable ones among them.
  std::int64_t trainable_bytes() const { return trainable_bytes_; }

 private:
  std::vector<int> owners_;
  int rank_;
  std::int64_t bytes_ = 0;
  std::int64_t trainable_bytes_ = 0;
};

/// Every owner sends its parameters to all ranks; blocks until this rank has them. All ranks pass
/// the same `indices`, and have storage for their tensors.
void broadcast_from_owners(const nn::ParameterList& list, const std::vector<std::size_t>& indices,
                           const Owners& owners, dist::Communicator& communicator,
                           dist::Purpose purpose);

/// Indices of all trainable parameters in reverse registration order.
std::vector<std::size_t> backward_order(const nn::ParameterList& list);

}  // namespace zero::train

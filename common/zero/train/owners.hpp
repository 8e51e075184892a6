#pragma once

#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/ownership.hpp>
#include <zero/train/placement.hpp>

namespace zero::train {

/// Which rank owns which whole parameter. For the chapters that shard by whole parameters.
class Owners {
 public:
  Owners(const nn::ParameterList& list, const dist::Communicator& communicator,
         Ownership ownership);

  int of(std::size_t index) const { return owners_[index]; }
  bool mine(std::size_t index) const { return owners_[index] == rank_; }
  /// Every rank keeps all of `list`, and updates what it owns. `group`: all owners.
  Placements placements(const nn::ParameterList& list, dist::Communicator& group) const;

 private:
  std::vector<int> owners_;
  int rank_;
};

/// Every owner sends its parameters to all ranks; blocks until this rank has them. All ranks pass
/// the same `indices`, and have storage for their tensors.
void broadcast_from_owners(const nn::ParameterList& list, const std::vector<std::size_t>& indices,
                           const Owners& owners, dist::Communicator& communicator);

}  // namespace zero::train

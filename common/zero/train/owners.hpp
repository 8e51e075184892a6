#pragma once

#include <cstdint>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/placement.hpp>

namespace zero::train {

/// Owner of each parameter, from the sizes alone, so that every rank gets the same answer without
/// communication: the largest first, each to the rank that has least so far. `bytes` in
/// registration order; ties go to the earlier parameter and the lower rank.
std::vector<int> assign_owners(const std::vector<std::int64_t>& bytes, int world_size);

/// Which rank owns which whole parameter. For the chapters that shard by whole parameters.
class Owners {
 public:
  Owners(const nn::ParameterList& list, const dist::Communicator& communicator);

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

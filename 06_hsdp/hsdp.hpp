#pragma once

#include <cstdint>
#include <memory>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/train/flat/transfers.hpp>

namespace zero {

/// The reduction of hybrid sharding (HSDP). The N ranks are cut into R groups of S, which hold
/// copies of each other:
///
///     bucket of gradients --reduce-scatter--> sum of the group, 1/S of it on each rank
///                         --all-reduce------> sum of all groups, divided by N once
///
/// Both travel during backward. The second works in place, so that the `.grad` of what a
/// rank updates, views of the shard, become the averages.
///
/// The sums are those of the tree ((r0 + … + r(S-1)) + (rS + …) + …): the bits are those of chapter
/// 00 with the all-reduce of HierarchicalDdp.
class ReduceInGroups final : public train::GradientTransfer {
 public:
  /// `groups`: axes "replica" and "shard"; it must outlive this object.
  ReduceInGroups(const dist::Mesh& groups, dist::ReduceType type, const train::FlatBuffer& buffer);

  dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) override;
  bool has_rest() const override { return true; }
  dist::Work reduce_rest(const at::Tensor& shard) override;
  train::SentBytes sent() const override;

 private:
  dist::Communicator& group_;
  dist::Communicator& replicas_;
  int ranks_;  // of all groups
  dist::ReduceType type_;
  std::int64_t shard_;
  at::ScalarType dtype_;
  at::Tensor sum_;  // of the group, between the two parts
};

/// What HSDP puts in place of the collectives over all ranks: gathers go over the group, and
/// ReduceInGroups over both axes of `groups`. If a group is a host, no parameter leaves it in a
/// step: between hosts there are only gradients, of which each rank sends its shard.
///
/// With V bytes of parameters and as many of gradients, a rank holds, and sends inside its group,
/// what the stage's formulas give for S ranks (3V (S-1)/S sent at stage 3). Between groups it sends
/// 2 (V/S) (R-1)/R.
///
/// The communicators of `groups` must outlive the strategy.
train::Transfers hsdp_transfers(const dist::Mesh& groups, dist::ReduceType type);

/// Chapter 05 with these transfers, at stage 1, 2 or 3. `shard_size`: S, or
/// dist::Mesh::kRanksOfHost; the same on all ranks. Called by all ranks; blocks. Throws zero::Error
/// on all ranks if groups of that size do not fill the ranks.
std::unique_ptr<ShardedDataParallel> make_hsdp(const train::StrategyArguments& arguments,
                                               const ShardingOptions& options,
                                               std::int64_t shard_size);

}  // namespace zero

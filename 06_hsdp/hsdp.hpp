#pragma once

#include <05_prefetch_overlap/overlap.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/distributed/work_queue.hpp>

namespace zero {

/// The options of chapter 05, and the key shard_size ("host" or a number of ranks).
struct HsdpOptions {
  OverlapOptions overlap = {};  ///< stage 1, 2 or 3
  /// Number of ranks that share the model states: the ranks are cut into groups of this size, which
  /// hold copies of each other. kRanksOfHost: by host.
  std::int64_t shard_size = dist::Mesh::kRanksOfHost;
};
void declare(base::Keys& keys, HsdpOptions& options);

/// Hybrid sharding (HSDP): the N ranks are cut into R groups of S. The ranks of a group share the
/// model states, as those of chapter 05 do at stages 1 to 3; the groups hold copies of each other.
/// If a group is a host, no parameter leaves it in a step: between hosts there are only gradients,
/// of which each rank sends its shard.
///
///     bucket of gradients --reduce-scatter--> sum of the group, 1/S of it on each rank
///                         --all-reduce------> sum of all groups, divided by N once
///
/// Both travel during backward. The second works in place, so that the `.grad` of the pieces,
/// which are views of the shard, become the averages.
///
/// With V bytes of parameters and as many of gradients, a rank holds, and sends inside its group,
/// what the stage's formulas give for S ranks (3V (S-1)/S sent at stage 3). Between groups it sends
/// 2 (V/S) (R-1)/R.
///
/// The sums are those of the tree ((r0 + … + r(S-1)) + (rS + …) + …): the bits are those of chapter
/// 00 with the all-reduce of HierarchicalDdp.
class Hsdp : public Overlap {
 public:
  /// `options.shard_size` is S. Called by all ranks; blocks. Throws zero::Error on all ranks if
  /// groups of S ranks do not fill the ranks, or if ranks differ in an option.
  Hsdp(const train::StrategyArguments& arguments, const HsdpOptions& options)
      : Hsdp(options, arguments.with_shards(agreed(arguments, options).shard_size)) {}

  dist::Communicator& shard_group() const override { return mesh_.along("shard"); }
  dist::Communicator& replica_group() const { return mesh_.along("replica"); }
  train::Costs costs() const override;

 protected:
  /// `arguments.mesh` has the axes "replica" and "shard".
  Hsdp(const HsdpOptions& options, const train::StrategyArguments& arguments);

  void shard_reduced(const train::ReducedShard& shard) override;
  void finish_between_groups() override { between_groups_.wait(); }

 private:
  bool has_replicas() const { return replica_group().size() > 1; }

  dist::WorkQueue between_groups_{communicator_.world_rank(communicator_.rank())};
};

}  // namespace zero

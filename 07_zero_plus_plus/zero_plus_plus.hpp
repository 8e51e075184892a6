#pragma once

#include <functional>

#include <05_prefetch_overlap/overlap.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/distributed/work_queue.hpp>

#include "transfers.hpp"

namespace zero {

/// ZeRO++ (Wang et al. 2023): stage 3 over all N ranks, with fewer bytes sent between groups of S
/// ranks, by default the ranks of a host. Each of its parts can be chosen alone:
///
///   - hpZ, secondary_shards: backward gathers parameters inside the group (SecondaryShard);
///   - qwZ, quantize_parameters: parameters travel in 8 bits (QuantizedParameters);
///   - qgZ, quantize_gradients: gradients travel in 4 bits, and leave a group as one sum
///     (QuantizedGradients).
///
/// All else is as in chapter 05: when ranks gather and reduce, and what is sharded. With hpZ alone
/// gradients are added up over all ranks, in the order of ranks: the bits are those of engine3, and
/// of chapter 00. qwZ and qgZ round what ranks send, never the weights that the optimizer updates;
/// a read outside of forward and backward shows these weights.
///
/// With V bytes of parameters in float32, hpZ holds V/S more than engine3, or with qwZ V/(4 S) and
/// scales. costs() has every byte.
///
/// As in engine3 all ranks, of all groups, must run the same units in the same order.
class ZeroPlusPlus : public Overlap {
 public:
  /// Called by all ranks; blocks. Throws zero::Error on all ranks if groups of that size do not
  /// fill the ranks, or if ranks differ in an option.
  ZeroPlusPlus(const train::StrategyArguments& arguments, const ZeroPlusPlusOptions& options);

 protected:
  using MakeTransfers = std::function<train::Transfers(
      const dist::Mesh&, const ZeroPlusPlusOptions&, const SecondaryShard::WeightsVersion&)>;
  /// With other transfers than those of zero_plus_plus_transfers().
  ZeroPlusPlus(const train::StrategyArguments& arguments, const ZeroPlusPlusOptions& options,
               const MakeTransfers& make_transfers)
      : ZeroPlusPlus(options, make_transfers,
                     arguments.with_shards(agreed(arguments, options).group_size)) {}

  void shard_reduced(const train::ReducedShard& shard) override;
  void finish_between_groups() override { between_groups_.wait(); }

 private:
  // `arguments.mesh` has the axes "replica" and "shard": the groups of group_size ranks. Model
  // states are sharded over all data ranks, not along "shard".
  ZeroPlusPlus(const ZeroPlusPlusOptions& options, const MakeTransfers& make_transfers,
               const train::StrategyArguments& arguments);

  dist::WorkQueue between_groups_{
      communicator_.world_rank(communicator_.rank())};  // second hops of gradients
};

}  // namespace zero

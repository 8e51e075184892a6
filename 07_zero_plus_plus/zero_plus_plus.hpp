#pragma once

#include <functional>

#include <05_prefetch_overlap/overlap.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/distributed/work_queue.hpp>

#include "transfers.hpp"

namespace zero {

/// What the groups of ZeroPlusPlus come from. A base class of its own, so that the groups outlive
/// the buffers of Overlap that use them.
struct ZeroPlusPlusMesh {
  dist::Mesh mesh;
};

/// ZeRO++ (Wang et al. 2023): stage 3 over all N ranks, and less on the links between groups of S
/// ranks, which are the ranks of a host if nothing else is asked for. Its parts are chosen one by
/// one:
///
///   - hpZ, secondary_shards: backward gathers parameters inside the group (SecondaryShard);
///   - qwZ, quantize_parameters: parameters travel in 8 bits (QuantizedParameters);
///   - qgZ, quantize_gradients: gradients travel in 4 bits, and leave a group as one sum
///     (QuantizedGradients).
///
/// All else is chapter 05: what is gathered when, what is reduced when, and what is sharded. With
/// hpZ alone gradients are added up over all ranks, in the order of ranks: the bits are those of
/// engine3, and of chapter 00. The other two round what they send. They never round the weights
/// that the optimizer updates; a read outside of forward and backward shows those.
///
/// With V bytes of parameters in float32, hpZ holds V/S more than engine3, or with qwZ V/(4 S) and
/// scales. costs() has every byte.
///
/// As in engine3 all ranks, of all groups, must run the same units in the same order.
class ZeroPlusPlus : private ZeroPlusPlusMesh, public Overlap {
 public:
  /// Called by all ranks; blocks. Throws zero::Error on all ranks if groups of that size do not
  /// fill the ranks, or if ranks differ in an option.
  ZeroPlusPlus(const train::StrategyArguments& arguments, const OverlapOptions& options);

  /// The ranks of this rank's group, and those with this rank's place in all groups.
  dist::Communicator& group() const { return mesh.along("shard"); }
  dist::Communicator& across_groups() const { return mesh.along("replica"); }

 protected:
  using MakeTransfers = std::function<train::Transfers(const dist::Mesh&, const OverlapOptions&,
                                                       const SecondaryShard::WeightsVersion&)>;
  /// With other transfers than those of zero_plus_plus_transfers().
  ZeroPlusPlus(const train::StrategyArguments& arguments, const OverlapOptions& options,
               const MakeTransfers& make_transfers);

  void shard_reduced(const train::ReducedShard& shard) override;
  void finish_reductions() override;

 private:
  dist::WorkQueue between_groups_{communicator_.rank()};  // second hops of gradients
};

/// The options in `arguments`: of the Engine, else of the variant ("group_size=2:lookahead=0"),
/// which change `defaults`.
OverlapOptions zero_plus_plus_options(const train::StrategyArguments& arguments,
                                      const OverlapOptions& defaults);

}  // namespace zero

#pragma once

#include <vector>

#include <zero/train/owners.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// ZeRO stage 3: like stage 2, but between uses only its owner holds a parameter. Before a unit
/// runs forward, the owners send its parameters to all ranks (gather); afterwards the other ranks
/// drop them again (reshard). Backward does the same once more.
///
/// At rest a rank holds on average V/N of parameters, V/N of gradients and 2V/N of AdamW's moments;
/// while a unit runs, also all of that unit. (Rajbhandari et al. 2020, sections 5.3 and 7.2.2.)
/// Variants, for units used once; rank r owns o_r bytes, and g_r of these are in the root:
///   "unit" (default)  gather and reshard unit by unit, the root once for forward and backward:
///                     V - o_r + (N-1) (2 o_r - g_r) on the wire
///   "whole"           gather the whole model before forward, keep it until backward is over:
///                     V - o_r + (N-1) o_r on the wire, and a peak of 1 V of parameters
class Zero3Sharding : public train::Strategy {
 public:
  /// Called by all ranks: rank 0 sends each first value to its owner; no rank holds the whole
  /// model.
  explicit Zero3Sharding(const train::StrategyArguments& arguments);

  train::Costs costs() const override;

 protected:
  /// The owners send their parameters of the unit to all ranks.
  void gather(std::size_t unit, train::Gather why) override;
  /// Drops the parameters that this rank does not own. Its own ones cannot be read through the
  /// model either, so that a read in the wrong place is an error on all ranks.
  void drop(std::size_t unit) override;

 private:
  // train::UnitSchedule calls it when the gradient may be reduced.
  void reduce_to_owner(std::size_t index);

  bool whole_model_;
  train::Owners owners_;
  std::vector<bool> gathered_;  // by unit
};

}  // namespace zero

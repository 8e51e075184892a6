#pragma once

#include <zero/train/owners.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// ZeRO stage 1: every parameter has one owner. Only the owner keeps optimizer state for it and
/// updates it, then sends the new value to all ranks.
///
/// Rank r owns o_r bytes, V/N on average. At rest it holds V of parameters, V of gradients and
/// 2 o_r of AdamW's moments. A step sends V + (N-2) o_r: V at N = 2, on average as plain DDP.
/// (Rajbhandari et al. 2020, sections 5.1 and 7.2.1.) Variants:
///   "owner" (default)  each gradient goes to its owner
///   "naive"            each gradient is all-reduced: 2V (N-1)/N + (N-1) o_r in a step, on average
///                      3V (N-1)/N
class Zero1Sharding : public train::Strategy {
 public:
  /// Called by all ranks: rank 0's parameters and buffers are sent to all.
  explicit Zero1Sharding(const train::StrategyArguments& arguments);

  void sync_parameters() override;

  train::Costs costs() const override;

 private:
  void reduce_to_owner(std::size_t index);

  bool naive_;
  train::Owners owners_;
};

}  // namespace zero

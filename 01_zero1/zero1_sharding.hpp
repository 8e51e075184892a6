#pragma once

#include <functional>

#include <zero/train/owners.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// ZeRO stage 1: every parameter has one owner. Only the owner keeps optimizer state for it and
/// updates it, then sends the new value to all ranks.
///
/// At rest a rank holds V of parameters, V of gradients and 2V/N of AdamW's moments. A step sends,
/// in variant
///   "owner" (default)  each gradient to its owner, each parameter back: V + (N-2) o_r, where
///                      rank r owns o_r; V at N = 2, on average 2V (N-1)/N, as plain DDP
///   "naive"            all-reduce, then broadcast: 2V (N-1)/N + (N-1) o_r, on average 3V (N-1)/N
/// and both give the same bits. (Rajbhandari et al. 2020, sections 5.1 and 7.2.1.)
class Zero1Sharding : public train::Strategy {
 public:
  /// Called by all ranks: rank 0's parameters and buffers are sent to all.
  explicit Zero1Sharding(const train::StrategyArguments& arguments);

  void finish_backward() override;
  void sync_parameters() override;

  /// For optimizers that evaluate the model themselves: runs `closure` (forward and backward,
  /// returns the loss), then finish_backward(), optimizer_step() and sync_parameters(). Returns the
  /// loss.
  at::Tensor step(const std::function<at::Tensor()>& closure);

  bool owns(std::size_t index) const override { return owners_.mine(index); }
  bool sharded() const override { return true; }
  train::Costs costs() const override;

 private:
  void reduce_gradients();

  bool naive_;
  bool reduce_each_;
  train::Owners owners_;
};

}  // namespace zero

#pragma once

#include <cstdint>

#include "tensor_sharding.hpp"

namespace zero {

/// Stage 1 over split tensors: reduce-scatter the gradients, update the shard, all-gather the
/// parameters. Sends 2F (N-1)/N in a step, as plain DDP does. Variants:
///   "flat" (default)  one buffer a unit
///   "per_parameter"   each parameter padded and split by itself: more collectives, more padding
///   "naive"           all-reduce, then all-gather: 3F (N-1)/N, for the comparison
class TensorZero1 final : public TensorSharding {
 public:
  explicit TensorZero1(const train::StrategyArguments& arguments);

  void finish_backward() override;
  void sync_parameters() override;
  train::ModelStateBytes predicted_bytes() const override;
  std::int64_t predicted_traffic() const override;

 private:
  bool naive_;
  bool reduce_each_;
};

/// Stage 2 over split tensors: as stage 1, and a unit's gradients are reduce-scattered as soon as
/// backward has made them all; only the shard of the average stays. Sends 2F (N-1)/N. Variants
/// "flat" (default) and "per_parameter", which frees earlier and sends in smaller pieces.
class TensorZero2 final : public TensorSharding {
 public:
  explicit TensorZero2(const train::StrategyArguments& arguments);

  void finish_backward() override;
  void sync_parameters() override;
  train::ModelStateBytes predicted_bytes() const override;
  std::int64_t predicted_traffic() const override;

 protected:
  void group_ready(std::size_t group) override;

 private:
  train::LaunchOrder order_;
};

/// Stage 3 over split tensors: as stage 2, and of the parameters too only the shard stays. A unit
/// is gathered before it runs forward and again before it runs backward, and resharded after each;
/// the root, last in forward and first in backward, stays whole in between. Sends 3F (N-1)/N less
/// the root's second gather. Variants:
///   "flat" (default)  one buffer and one collective a unit
///   "per_parameter"   one buffer and one collective a parameter
///   "whole"           gathers the whole model before forward, keeps it through backward:
///                     2F (N-1)/N, and a peak of F of parameters
class TensorZero3 final : public TensorSharding {
 public:
  explicit TensorZero3(const train::StrategyArguments& arguments);

  void finish_backward() override;
  void summon(std::size_t unit) override { gather(unit); }
  void dismiss(std::size_t unit) override { reshard(unit); }

  void pre_forward(nn::Unit& unit) override;
  void post_forward(nn::Unit& unit) override;
  void pre_backward(nn::Unit& unit) override;
  void post_backward(nn::Unit& unit) override;

  train::ModelStateBytes predicted_bytes() const override;
  std::int64_t predicted_traffic() const override;

 protected:
  void group_ready(std::size_t group) override;

 private:
  void gather(std::size_t unit);
  void reshard(std::size_t unit);
  std::vector<std::size_t> units_around(const nn::Unit& unit) const;
  bool stays_whole(std::size_t unit) const { return whole_model_ || unit == 0; }

  bool whole_model_;
  train::LaunchOrder order_;
  std::vector<std::size_t> unit_of_;  // by group
  std::vector<std::size_t> ready_;    // by unit: groups whose gradients have come
};

}  // namespace zero

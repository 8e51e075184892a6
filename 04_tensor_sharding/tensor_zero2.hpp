#pragma once

#include <cstdint>

#include "tensor_sharding.hpp"

namespace zero {

/// Stage 2 over split tensors: as stage 1, and a unit's gradients are reduce-scattered as soon as
/// backward has made them all; only the shard of the average stays. Sends 2F (N-1)/N. Variants
/// "flat" (default) and "per_parameter", which sends, and frees, in smaller pieces.
class TensorZero2 : public TensorSharding {
 public:
  explicit TensorZero2(const train::StrategyArguments& arguments);

  void finish_backward() override;
  void sync_parameters() override;
  void zero_grad() override;
  train::ModelStateBytes predicted_bytes() const override;
  std::int64_t predicted_traffic() const override;

 protected:
  void group_ready(std::size_t group) override;

 private:
  train::ReductionSchedule order_;
};

}  // namespace zero

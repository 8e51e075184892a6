#pragma once

#include "tensor_sharding.hpp"

namespace zero {

/// Stage 2 over split tensors: like stage 1, and a unit's gradients are reduce-scattered as soon as
/// backward has made them all; only the shard of the average stays. Sends 2F (N-1)/N. Variants
/// "flat" (default) and "per_parameter", which sends and frees smaller pieces.
class TensorZero2 : public TensorSharding {
 public:
  explicit TensorZero2(const train::StrategyArguments& arguments);
};

}  // namespace zero

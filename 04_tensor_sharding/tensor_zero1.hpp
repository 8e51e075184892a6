#pragma once

#include "tensor_sharding.hpp"

namespace zero {

/// Stage 1 over split tensors: reduce-scatter the gradients, update the shard, all-gather the
/// parameters. Sends 2F (N-1)/N in a step (F: see TensorSharding), the same as plain DDP plus the
/// padding. Variants:
///   "flat" (default)  one buffer a unit
///   "per_parameter"   each parameter padded and split by itself: more collectives, more padding
///   "naive"           all-reduce, then all-gather: 3F (N-1)/N, for the comparison
class TensorZero1 : public TensorSharding {
 public:
  explicit TensorZero1(const train::StrategyArguments& arguments);
};

}  // namespace zero

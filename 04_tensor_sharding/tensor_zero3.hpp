#pragma once

#include <cstdint>

#include "tensor_sharding.hpp"

namespace zero {

/// Stage 3 over split tensors: like stage 2, and only the shard of the parameters stays too. A unit
/// is gathered before it runs forward and again before it runs backward, and resharded after each;
/// the root, last in forward and first in backward, stays whole in between. Sends 3F (N-1)/N less
/// the root's second gather. Variants:
///   "flat" (default)  one buffer and one collective a unit
///   "per_parameter"   one buffer and one collective a parameter
///   "whole"           gathers the whole model before forward, keeps it through backward:
///                     2F (N-1)/N, and a peak of F of parameters
class TensorZero3 : public TensorSharding {
 public:
  explicit TensorZero3(const train::StrategyArguments& arguments);

 protected:
  void gather(std::size_t unit, train::Gather why) override;
  /// Leaves only this rank's shards of the unit's parameters.
  void drop(std::size_t unit) override { flat_.reshard(unit); }
  std::int64_t gathers(std::size_t unit) const override;

 private:
  bool whole_model_;  // variant "whole"
};

}  // namespace zero

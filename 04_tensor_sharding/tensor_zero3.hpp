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
///   "leaf"            every layer that holds parameters (nn::Leaf) is gathered by itself, around
///                     each use. At most one is whole, beside parameters of the root that are in no
///                     layer. That takes more and smaller collectives. A layer that runs twice in a
///                     forward, such as an embedding that is the output head too, is gathered four
///                     times. Under activation checkpointing, layers that run again stay whole
///                     until their backward, which follows at once: all layers of a checkpointed
///                     part are whole together, and the traffic is the same as without it.
///   "whole"           gathers the whole model before forward, keeps it through backward:
///                     2F (N-1)/N, and a peak of F of parameters
class TensorZero3 : public TensorSharding {
 public:
  explicit TensorZero3(const train::StrategyArguments& arguments);

 protected:
  void pre_forward(std::size_t unit) override;
  void post_forward(std::size_t unit) override;
  void pre_backward(std::size_t unit) override { pre_forward(unit); }
  void post_backward(std::size_t unit) override;
  void gather(std::size_t unit) override;
  /// Leaves only this rank's shards of the unit's parameters.
  void drop(std::size_t unit) override;
  std::int64_t gathers(std::size_t unit) const override;

 private:
  bool is_leaf(std::size_t unit) const;
  /// From the end of its forward to its backward.
  bool stays_whole(std::size_t unit) const { return whole_model_ || unit == kRoot; }

  bool whole_model_;  // variant "whole"
  bool by_leaf_;      // variant "leaf"
};

}  // namespace zero

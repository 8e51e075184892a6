#pragma once

#include <cstdint>

#include <zero/train/strategy.hpp>

namespace zero::train {

/// The sums that the formulas of the stages are made of, in bytes, as one rank sees its model:
/// `own_` is the part that this rank updates.
struct CostSums {
  /// Reads sizes only; sends nothing.
  explicit CostSums(const Strategy& strategy);

  std::int64_t parameters = 0;  ///< V, frozen ones too
  std::int64_t own_parameters = 0;
  std::int64_t trainable = 0;  ///< trainable parameters, and as much of gradients
  std::int64_t own_trainable = 0;
  std::int64_t reduced = 0;  ///< gradients in the types in which they are reduced
  std::int64_t own_reduced = 0;
  std::int64_t all_reduced = 0;  ///< what this rank sends if each gradient is all-reduced
  /// Optimizer state on this rank once everything has been updated, as the optimizer reports it:
  /// for its shards of trainable parameters, and of those that were frozen after an update.
  std::int64_t optimizer = 0;
  std::int64_t others = 0;  ///< how many other ranks there are: N - 1
};

}  // namespace zero::train

#pragma once

#include <cstdint>
#include <functional>

#include <zero/distributed/reduction.hpp>
#include <zero/train/flat/transfers.hpp>

namespace zero::train {

/// Which model states are sharded between steps.
enum class Sharded : std::uint8_t {
  kNothing,     ///< stage 0: parameters, gradients and optimizer states are whole
  kOptimizer,   ///< stage 1: the optimizer's states are sharded
  kGradients,   ///< stage 2: gradients as well
  kParameters,  ///< stage 3: parameters as well
};

/// What is done with the flat buffers of a unit.
struct FlatOptions {
  Sharded sharded = Sharded::kNothing;
  /// How gradients are averaged over the ranks.
  dist::Reduction average = {};
  /// At stage 1: average gradients by an all-reduce, although only the shard is used.
  bool all_reduces = false;
  /// Averages of several micro-batches are added up, so that an average must leave the gradient
  /// buffer before the next micro-batch writes into it.
  bool adds_averages = false;
  /// The bytes of averaged gradients stay allocated from step to step.
  bool keeps_gradients = false;
  Transfers transfers = {};
  std::function<std::int64_t()> version = {};  ///< see FlatBuffer
};

}  // namespace zero::train

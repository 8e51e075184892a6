#pragma once

#include <cstdint>

namespace zero {

/// Ask for a lookahead that fits the machine.
inline constexpr std::int64_t kAutoLookahead = -1;

/// A threshold for OverlapOptions::whole_below where one is asked for without a number: units of
/// 100 million parameters and more are sharded, all others stay whole.
inline constexpr std::int64_t kHybridThreshold = 100'000'000;

/// How much is sharded, and when things are sent.
struct OverlapOptions {
  /// 0: nothing is sharded (chapter 00). 1, 2, 3: optimizer states, gradients, parameters as well.
  int stage = 3;
  /// Gradients of a unit travel in buckets of at most so many bytes. A bucket never spans units; a
  /// parameter that is larger is a bucket of its own.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  /// Most bytes of gradients in flight at once; a larger bucket goes alone.
  std::int64_t in_flight_bytes = std::int64_t{50} << 20;
  /// Units whose parameters are asked for before they are needed (stage 3). kAutoLookahead: as
  /// choose_lookahead() finds after the first passes, which gather on demand and are timed.
  std::int64_t lookahead = 1;
  /// With kAutoLookahead: most bytes of parameters that may be whole ahead of time.
  std::int64_t ahead_bytes = std::int64_t{512} << 20;
  /// Units of fewer elements keep their parameters whole at stage 3, as at stage 2: little memory,
  /// and one gather less. 0: none does.
  std::int64_t whole_below = 0;
  /// Buffers that are given up are kept for the next of the same size (memory::StoragePool). False
  /// gives them back to the system at once.
  bool keep_buffers = true;
  /// What a rank keeps of gradients has the same bytes in every step. False gives them back to the
  /// system when gradients are cleared: forward has less memory in use then, and backward touches
  /// new pages. Those of the root's shards (stages 2 and 3) are always given back: they come last,
  /// when most is in use.
  bool keep_gradients = true;
  /// Stages 1 and 2: sync_parameters() only starts to gather what has been updated, and each unit's
  /// forward waits for its own. Until then parameters that another rank has updated have old values
  /// here, or some of the new: read them inside unshard() and reshard() only.
  bool defer_parameter_gather = false;
};

/// Throws zero::Error, naming the option and what would be right, where one is out of range.
void check_options(const OverlapOptions& options);

}  // namespace zero

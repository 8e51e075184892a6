#pragma once

#include <cstdint>

namespace zero {

/// How much is sharded, and when things are sent.
struct ShardingOptions {
  /// 0: nothing is sharded. 1, 2, 3: optimizer states, gradients, parameters as well.
  std::int64_t stage = 3;
  /// Gradients of a unit are sent in buckets of at most this many bytes. A bucket never spans
  /// units; a larger parameter has a bucket of its own.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  /// Most bytes of gradients in flight at once; a larger bucket goes alone. If a reduction
  /// between groups of ranks follows, every bucket goes alone inside a group.
  std::int64_t in_flight_bytes = std::int64_t{50} << 20;
  /// Number of units whose parameters are gathered ahead (stage 3). 0: on demand.
  std::int64_t lookahead = 1;
  /// Units with fewer elements keep their parameters whole at stage 3, as at stage 2: this takes
  /// little memory and saves a gather. 0: no unit does.
  std::int64_t whole_below = 0;
  /// Freed buffers are kept for the next of the same size (memory::StoragePool). False returns them
  /// to the system at once.
  bool keep_buffers = true;
  /// The gradients that a rank keeps have the same memory in every step. False returns it to the
  /// system when gradients are cleared: forward has less memory in use then, and backward touches
  /// new pages. The memory of the root's gradient shards (stages 2 and 3) is always returned: they
  /// come last, when most memory is in use.
  bool keep_gradients = true;
  /// Stages 1 and 2: sync_parameters() only starts to gather what has been updated, and each unit's
  /// forward waits for its own parameters. Until then, parameters that another rank has updated may
  /// have old values here, or partly new ones: read them only between unshard() and reshard().
  bool defer_parameter_gather = false;
};

}  // namespace zero

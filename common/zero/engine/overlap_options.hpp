#pragma once

#include <cstdint>
#include <string>

#include <zero/distributed/mesh.hpp>

namespace zero {

/// Chooses a lookahead that fits the machine.
inline constexpr std::int64_t kAutoLookahead = -1;

/// The threshold for OverlapOptions::whole_below if it is requested without a number: units of 100
/// million parameters and more are sharded, all others stay whole.
inline constexpr std::int64_t kHybridThreshold = 100'000'000;

/// For OverlapOptions::shard_size: the ranks of a host share the model states.
inline constexpr std::int64_t kRanksOfHost = dist::Mesh::kRanksOfHost;

/// How much is sharded, and when things are sent.
struct OverlapOptions {
  /// 0: nothing is sharded (chapter 00). 1, 2, 3: optimizer states, gradients, parameters as well.
  int stage = 3;
  /// Gradients of a unit are sent in buckets of at most this many bytes. A bucket never spans
  /// units; a larger parameter has a bucket of its own.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  /// Most bytes of gradients in flight at once; a larger bucket goes alone. Where a reduction
  /// between groups follows (hsdp1 to hsdp3, qgz, zeropp), every bucket goes alone inside a group.
  std::int64_t in_flight_bytes = std::int64_t{50} << 20;
  /// Number of units whose parameters are gathered ahead (stage 3). kAutoLookahead: as
  /// choose_lookahead() decides after the first passes, which gather on demand and are timed.
  std::int64_t lookahead = 1;
  /// With kAutoLookahead: most bytes of parameters that may be whole ahead of time.
  std::int64_t ahead_bytes = std::int64_t{512} << 20;
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
  /// Number of ranks that share the model states (modes hsdp1 to hsdp3 of chapter 06): the ranks
  /// are cut into groups of this size, which hold copies of each other. kRanksOfHost: by host. 0:
  /// all ranks share them (engine1 to engine3).
  std::int64_t shard_size = 0;

  // ZeRO++ (chapter 07), at stage 3: all ranks share the model states.

  /// Number of ranks in a group. Links inside a group are taken to be fast, those between groups
  /// slow. kRanksOfHost: by host.
  std::int64_t group_size = kRanksOfHost;
  /// hpZ: the ranks of a group share a second copy of the parameters, from which they gather them
  /// as long as they do not change.
  bool secondary_shards = false;
  /// qwZ: parameters are gathered as int8. The weights that the optimizer updates are not rounded.
  bool quantize_parameters = false;
  /// qgZ: gradients are averaged by two all-to-alls, inside groups and then between them, as
  /// integers of `gradient_bits` (4 or 8) bits.
  bool quantize_gradients = false;
  std::int64_t gradient_bits = 4;
  /// Number of parameters that share a scale where they are quantised; even.
  std::int64_t quantization_block = 2048;
  /// Number of elements of a gradient that share one; even. Fewer, because 4 bits round what is
  /// small beside the largest of a block to 0, in each step.
  std::int64_t gradient_block = 256;
};

/// The mode of chapter 07 that its options of ZeRO++ make: "hpz", "qwz", "qgz", or "zeropp" for
/// several of them. Empty if none is set.
std::string zero_plus_plus_mode(const OverlapOptions& options);

/// Returns `options`. Throws zero::Error if one is out of range; it names the option and what would
/// be right.
const OverlapOptions& checked(const OverlapOptions& options);

/// Those that must be the same on all ranks, a line or a few words each.
std::string to_text(const OverlapOptions& options);

}  // namespace zero

#pragma once

#include <cstdint>
#include <memory>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/train/flat/transfers.hpp>

namespace zero {

/// At least one of the three parts must be true.
struct ZeroPlusPlusOptions {
  /// Number of ranks in a group. Links inside a group are taken to be fast, those between groups
  /// slow. kRanksOfHost: by host.
  std::int64_t group_size = dist::Mesh::kRanksOfHost;
  /// hpZ: the ranks of a group share a second copy of the parameters, from which they gather them
  /// as long as they do not change.
  bool secondary_shards = false;
  /// qwZ: parameters are gathered as int8. The weights that the optimizer updates are not rounded.
  bool quantize_parameters = false;
  /// qgZ: gradients are averaged by two all-to-alls, inside groups and then between them, as
  /// integers of `gradient_bits` (4 or 8) bits.
  bool quantize_gradients = false;
  std::int64_t gradient_bits = 4;
  /// Number of quantized parameters that share a scale; even.
  std::int64_t quantization_block = 2048;
  /// Number of elements of a gradient that share one; even. Fewer, because 4 bits round what is
  /// small beside the largest of a block to 0, in each step.
  std::int64_t gradient_block = 256;
};

/// What the options of ZeRO++ put in place of the collectives of stage 3. `groups`: axes "replica"
/// and "shard".
///
///     AllGather           of values, or of bytes if parameters are quantized
///     SecondaryShard      around it; keeps a part of what it gathers
///     QuantizedParameters around both
///     QuantizedGradients  in place of the reduce-scatter
///
/// With one rank nothing is sent, and so nothing is rounded.
train::Transfers zero_plus_plus_transfers(const dist::Mesh& mesh,
                                          const ZeroPlusPlusOptions& options);

/// ZeRO++ (Wang et al. 2023): stage 3 of chapter 05 over all N ranks, with fewer bytes sent between
/// groups of S ranks, by default the ranks of a host. Each of its parts can be chosen alone:
///
///   - hpZ, secondary_shards: backward gathers parameters inside the group (SecondaryShard);
///   - qwZ, quantize_parameters: parameters travel in 8 bits (QuantizedParameters);
///   - qgZ, quantize_gradients: gradients travel in 4 bits, and leave a group as one sum
///     (QuantizedGradients).
///
/// All else is as in chapter 05: when ranks gather and reduce, and what is sharded. With hpZ alone
/// gradients are added up over all ranks, in the order of ranks: the bits are those of engine3, and
/// of chapter 00. qwZ and qgZ round what ranks send, never the weights that the optimizer updates;
/// a read outside of forward and backward shows these weights.
///
/// With V bytes of parameters in float32, hpZ holds V/S more than engine3, or with qwZ V/(4 S) and
/// scales. costs() has every byte.
///
/// As in engine3 all ranks, of all groups, must run the same units in the same order. `options`: at
/// stage 3, and as `parts` the same on all ranks. Called by all ranks; blocks. Throws zero::Error
/// on all ranks if groups of that size do not fill the ranks.
std::unique_ptr<ShardedDataParallel> make_zero_plus_plus(const train::StrategyArguments& arguments,
                                                         const ShardingOptions& options,
                                                         const ZeroPlusPlusOptions& parts);

}  // namespace zero

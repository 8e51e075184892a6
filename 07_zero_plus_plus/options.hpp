#pragma once

#include <cstdint>

#include <zero/distributed/mesh.hpp>
#include <zero/train/overlap_options.hpp>

namespace zero {

/// Those of chapter 05, and keys of the fields' names. At least one of the three parts must be
/// true.
struct ZeroPlusPlusOptions {
  OverlapOptions overlap = {};  ///< stage 3: all ranks share the model states
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
void declare(base::Keys& keys, ZeroPlusPlusOptions& options);

}  // namespace zero

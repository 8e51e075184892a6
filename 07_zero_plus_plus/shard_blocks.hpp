#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include <zero/train/flat/shard_layout.hpp>

#include "block_layout.hpp"

namespace zero {

/// How the shards of a flat buffer are quantized: in blocks of elements that share a scale. No
/// block has elements of two shards or of two parameters. (Padding is in the blocks of the
/// parameter before it; its zeros change no scale.)
///
/// Shards have the same number of elements, but not of blocks, because parameters begin at other
/// places in each one. Collectives want equal pieces, so every packed shard has as many bytes as
/// the largest; unused bytes are sent too.
class ShardBlocks {
 public:
  ShardBlocks(const train::ShardLayout& layout, quantization::Format format);

  /// Elements of a shard, and bytes of a packed one.
  std::int64_t shard() const { return shard_; }
  std::int64_t packed_bytes() const { return packed_bytes_; }
  int ranks() const { return static_cast<int>(blocks_.size()); }

  // `packed`: uint8 [packed_bytes()]. Values: [shard()], contiguous. `rank`: whose shard it is.

  /// Returns false if a value is infinite or NaN: its block is then NaN.
  bool quantize(int rank, const at::Tensor& values, const at::Tensor& packed) const;
  void dequantize(int rank, const at::Tensor& packed, const at::Tensor& out) const;
  void dequantize_and_add(int rank, const at::Tensor& packed, const at::Tensor& sum) const;

 private:
  const quantization::BlockLayout& of(int rank) const {
    return blocks_[static_cast<std::size_t>(rank)];
  }
  at::Tensor used(int rank, const at::Tensor& packed) const;

  std::int64_t shard_;
  std::vector<quantization::BlockLayout> blocks_;  // by rank
  std::int64_t packed_bytes_ = 0;
};

}  // namespace zero

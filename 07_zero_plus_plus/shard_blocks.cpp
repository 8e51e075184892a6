#include "shard_blocks.hpp"

#include <algorithm>

#include "quantize.hpp"

namespace zero {

namespace {

// The elements of each parameter in the shard of `rank`, with the padding behind it.
std::vector<std::int64_t> segments(const train::ShardLayout& layout, int rank) {
  const std::int64_t first = rank * layout.shard(), last = first + layout.shard();
  std::vector<std::int64_t> lengths;
  for (std::size_t t = 0; t < layout.tensors(); ++t) {
    const std::int64_t begin = layout.offset(t);
    const std::int64_t end = t + 1 < layout.tensors() ? layout.offset(t + 1) : layout.total();
    lengths.push_back(std::max<std::int64_t>(std::min(end, last) - std::max(begin, first), 0));
  }
  return lengths;
}

}  // namespace

ShardBlocks::ShardBlocks(const train::ShardLayout& layout, quantization::Format format)
    : shard_(layout.shard()) {
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    blocks_.emplace_back(segments(layout, rank), format);
    packed_bytes_ = std::max(packed_bytes_, blocks_.back().packed_bytes());
  }
}

bool ShardBlocks::quantize(int rank, const at::Tensor& values, const at::Tensor& packed) const {
  return quantization::quantize(values, of(rank), used(rank, packed));
}

void ShardBlocks::dequantize(int rank, const at::Tensor& packed, const at::Tensor& out) const {
  quantization::dequantize(used(rank, packed), of(rank), out);
}

void ShardBlocks::dequantize_and_add(int rank, const at::Tensor& packed,
                                     const at::Tensor& sum) const {
  quantization::dequantize_and_add(used(rank, packed), of(rank), sum);
}

at::Tensor ShardBlocks::used(int rank, const at::Tensor& packed) const {
  return packed.narrow(0, 0, of(rank).packed_bytes());
}

}  // namespace zero

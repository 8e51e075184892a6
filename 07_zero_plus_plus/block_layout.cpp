#include "block_layout.hpp"

#include <c10/util/Exception.h>

namespace zero::quantization {
BlockLayout::BlockLayout(const std::vector<std::int64_t>& segments, Format format)
    : format_(format) {
  // With 4 bits a byte holds two elements of one block.
  TORCH_INTERNAL_ASSERT(
      (format.bits == 8 || (format.bits == 4 && format.block % 2 == 0)) && format.block >= 1,
      "a block of 8 bits, or an even one of 4 bits, is needed");
  for (const std::int64_t elements : segments) {
    TORCH_INTERNAL_ASSERT(elements >= 0, "a segment has 0 or more elements");
    add_run(elements / format.block, format.block);
    add_run(1, elements % format.block);
  }
  // Scales come first, and only now is it known how many there are.
  for (Run& run : runs_) run.payload += 4 * blocks_;
  packed_bytes_ += 4 * blocks_;
}

void BlockLayout::add_run(std::int64_t blocks, std::int64_t length) {
  if (blocks == 0 || length == 0) return;
  const std::int64_t block_bytes = (length * format_.bits + 7) / 8;
  runs_.push_back({elements_, blocks, length, blocks_, packed_bytes_, block_bytes});
  elements_ += blocks * length;
  blocks_ += blocks;
  packed_bytes_ += blocks * block_bytes;
}

}  // namespace zero::quantization

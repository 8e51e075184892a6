#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/quantization/block_layout.hpp>

namespace zero::quantization {
namespace {

void check_format(const Format& format) {
  if (format.bits != 8 && format.bits != 4) {
    throw Error(fmt::format("quantization::Format::bits is {}: it must be 8 or 4", format.bits));
  }
  if (format.block < 1) {
    throw Error(fmt::format("quantization::Format::block is {}: it must be at least 1 element",
                            format.block));
  }
  if (format.bits == 4 && format.block % 2 != 0) {
    throw Error(fmt::format(
        "quantization::Format::block is {} with 4 bits: it must be even, because a byte holds two "
        "elements of one block",
        format.block));
  }
}

}  // namespace

BlockLayout::BlockLayout(const std::vector<std::int64_t>& segments, Format format)
    : format_(format) {
  check_format(format);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i] < 0) {
      throw Error(
          fmt::format("segment {} of quantization::BlockLayout has {} elements: it must "
                      "have 0 or more",
                      i, segments[i]));
    }
    add_run(segments[i] / format.block, format.block);
    add_run(1, segments[i] % format.block);
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

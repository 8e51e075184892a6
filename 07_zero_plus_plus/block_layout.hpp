#pragma once

#include <cstdint>
#include <vector>

namespace zero::quantization {

/// Symmetric blockwise quantization, as in ZeRO++ (Wang et al. 2023): an element is scale * q, with
/// q a whole number in [-largest(), largest()]. The scale of a block is (largest magnitude) /
/// largest(), so that no element is clipped.
struct Format {
  int bits = 8;               ///< of q: 8 or 4
  std::int64_t block = 2048;  ///< elements that share a scale; even with 4 bits

  /// The largest q: 127 with 8 bits, 7 with 4.
  int largest() const { return (1 << (bits - 1)) - 1; }
};

/// No scale is smaller, that of a block of zeros included. At this scale and above neither the
/// division by the scale nor the product with it meets a denormal result that matters, so that the
/// bits do not depend on whether the processor flushes denormals.
inline constexpr float kSmallestScale = 0x1p-125F;
/// Scales are made from at most this magnitude, the float before the largest: 127 times the rounded
/// quotient of the largest float and 127 would be infinite.
inline constexpr float kLargestMagnitude = 0x1.fffffcp127F;

/// How `segments` (lengths in elements, one after the other) are cut into blocks. A block lies in
/// one segment, whose last block may be shorter.
///
/// Packed bytes are the scales of all blocks (float32) and then q of all elements: an int8 each, or
/// with 4 bits two in a byte, the first in the low half, each as two's complement. A segment begins
/// with a byte of its own; the unused half of its last byte is 0.
class BlockLayout {
 public:
  /// Blocks of one length that follow each other: the full blocks of a segment, or its shorter one.
  struct Run {
    std::int64_t begin = 0;        ///< the first element
    std::int64_t blocks = 0;       ///< how many, at least 1
    std::int64_t length = 0;       ///< elements of a block, at least 1
    std::int64_t first_block = 0;  ///< its scale lies at byte 4 * first_block
    std::int64_t payload = 0;      ///< the byte where q of its first element lies
    std::int64_t block_bytes = 0;  ///< bytes of q of a block
  };

  /// Segments may be empty.
  BlockLayout(const std::vector<std::int64_t>& segments, Format format);

  std::int64_t elements() const { return elements_; }
  std::int64_t blocks() const { return blocks_; }
  /// 4 bytes a block for scales, and 1 byte an element or with 4 bits (n + 1) / 2 bytes for each
  /// segment of n elements.
  std::int64_t packed_bytes() const { return packed_bytes_; }
  const Format& format() const { return format_; }
  const std::vector<Run>& runs() const { return runs_; }

 private:
  void add_run(std::int64_t blocks, std::int64_t length);

  Format format_;
  std::int64_t elements_ = 0;
  std::int64_t blocks_ = 0;
  std::int64_t packed_bytes_ = 0;
  std::vector<Run> runs_;
};

}  // namespace zero::quantization

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace exercise_04a {

/// Everything begins at a multiple of this many elements.
inline constexpr std::int64_t kAlignment = 64;

/// Where tensors lie in one flat buffer, and how long a shard of it is. In elements.
struct Layout {
  std::vector<std::int64_t> sizes;    ///< of each tensor, as given
  std::vector<std::int64_t> offsets;  ///< where each tensor begins in the buffer
  std::int64_t shard = 0;             ///< length of a shard; the buffer has N of them
};

/// The part of a tensor that lies in the shard of a rank.
struct Range {
  std::int64_t begin = 0;     ///< first element, in the tensor
  std::int64_t in_shard = 0;  ///< where that element is in the shard
  std::int64_t size = 0;      ///< elements; 0 if nothing of the tensor is there
};

/// What an answer consists of.
struct Answer {
  /// Lays tensors of `sizes` elements (0 or more) one after the other, and cuts the buffer for
  /// `ranks` ranks.
  Layout (*make_layout)(const std::vector<std::int64_t>& sizes, int ranks);
  /// The part of tensor `tensor` that lies in the shard of rank `rank`.
  Range (*range)(const Layout& layout, std::size_t tensor, int rank);
};

}  // namespace exercise_04a

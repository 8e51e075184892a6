#include "04a.hpp"

using exercise_04a::kAlignment;
using exercise_04a::Layout;
using exercise_04a::Range;

std::int64_t round_up(std::int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

Layout make_layout(const std::vector<std::int64_t>& sizes, int ranks) {
  Layout layout{sizes, {}, 0};
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) {
    layout.offsets.push_back(end);
    end = round_up(end + size);
  }
  layout.shard = round_up((end + ranks - 1) / ranks);
  return layout;
}

Range range(const Layout& layout, std::size_t tensor, int rank) {
  const std::int64_t offset = layout.offsets[tensor];
  const std::int64_t shard_begin = rank * layout.shard;
  const std::int64_t begin = std::max(offset, shard_begin);
  const std::int64_t end = std::min(offset + layout.sizes[tensor], shard_begin + layout.shard);
  if (begin >= end) return {};
  return {begin - offset, begin - shard_begin, end - begin};
}

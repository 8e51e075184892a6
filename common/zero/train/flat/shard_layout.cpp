#include <ATen/ceil_div.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <zero/train/flat/shard_layout.hpp>

namespace zero::train {

ShardLayout::ShardLayout(std::vector<std::int64_t> sizes, int world_size)
    : sizes_(std::move(sizes)), world_size_(world_size) {
  TORCH_INTERNAL_ASSERT(world_size >= 1);
  std::int64_t end = 0;
  for (const std::int64_t size : sizes_) {
    TORCH_INTERNAL_ASSERT(size >= 0);
    offsets_.push_back(end);
    end = at::round_up(end + size, kAlignment);
    elements_ += size;
  }
  shard_ = at::round_up(at::ceil_div<std::int64_t>(end, world_size), kAlignment);
}

ShardLayout::Range ShardLayout::range(std::size_t tensor, int rank) const {
  const std::int64_t shard_begin = rank * shard_;
  const std::int64_t begin = std::max(offsets_[tensor], shard_begin);
  const std::int64_t end = std::min(offsets_[tensor] + sizes_[tensor], shard_begin + shard_);
  if (begin >= end) return {};
  return {begin - offsets_[tensor], begin - shard_begin, end - begin};
}

}  // namespace zero::train

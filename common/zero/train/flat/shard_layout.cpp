#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <zero/train/flat/shard_layout.hpp>

namespace zero::train {
namespace {

std::int64_t round_up(std::int64_t elements) {
  constexpr std::int64_t a = ShardLayout::kAlignment;
  return (elements + a - 1) / a * a;
}

}  // namespace

ShardLayout::ShardLayout(std::vector<std::int64_t> sizes, int world_size)
    : sizes_(std::move(sizes)), world_size_(world_size) {
  TORCH_INTERNAL_ASSERT(world_size >= 1);
  std::int64_t end = 0;
  for (const std::int64_t size : sizes_) {
    TORCH_INTERNAL_ASSERT(size >= 0);
    offsets_.push_back(end);
    end = round_up(end + size);
    elements_ += size;
  }
  shard_ = round_up((end + world_size - 1) / world_size);
}

ShardLayout::Range ShardLayout::range(std::size_t tensor, int rank) const {
  const std::int64_t shard_begin = rank * shard_;
  const std::int64_t begin = std::max(offsets_[tensor], shard_begin);
  const std::int64_t end = std::min(offsets_[tensor] + sizes_[tensor], shard_begin + shard_);
  if (begin >= end) return {};
  return {begin - offsets_[tensor], begin - shard_begin, end - begin};
}

}  // namespace zero::train

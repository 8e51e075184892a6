#pragma once

#include <gtest/gtest.h>

#include <zero/train/flat/shard_layout.hpp>

namespace zero::testing {

/// Expects what every layout of shards must have: no element lost or held twice, all shards alike,
/// and little padding.
inline void expect_sound(const train::ShardLayout& layout) {
  using train::ShardLayout;
  std::int64_t elements = 0;
  std::int64_t last_end = 0;
  for (std::size_t t = 0; t < layout.tensors(); ++t) {
    EXPECT_EQ(layout.offset(t) % ShardLayout::kAlignment, 0);
    EXPECT_GE(layout.offset(t), last_end) << "tensors overlap";
    last_end = layout.offset(t) + layout.size(t);
    elements += layout.size(t);
    // The segments of all ranks, one after the other, are the tensor.
    std::int64_t next = 0;
    for (int r = 0; r < layout.world_size(); ++r) {
      const ShardLayout::Range s = layout.range(t, r);
      if (s.size == 0) continue;
      EXPECT_EQ(s.begin, next);
      EXPECT_EQ(r * layout.shard() + s.in_shard, layout.offset(t) + s.begin);
      EXPECT_LE(s.in_shard + s.size, layout.shard());
      EXPECT_EQ(s.begin % ShardLayout::kAlignment, 0) << "a shard cuts at an odd place";
      next += s.size;
    }
    EXPECT_EQ(next, layout.size(t)) << "of tensor " << t;
  }
  EXPECT_LE(last_end, layout.total());
  EXPECT_EQ(layout.total(), layout.shard() * layout.world_size());
  EXPECT_EQ(layout.padding(), layout.total() - elements);
  EXPECT_EQ(layout.shard() % ShardLayout::kAlignment, 0);
  // Never more than the tensors' own ends and one step a rank.
  EXPECT_LT(layout.padding(),
            ShardLayout::kAlignment *
                (static_cast<std::int64_t>(layout.tensors()) + layout.world_size() + 1));
}

}  // namespace zero::testing

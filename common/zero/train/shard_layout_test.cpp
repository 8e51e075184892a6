// Properties that hold for every layout: nothing lost, nothing twice, all shards alike.

#include <gtest/gtest.h>

#include <random>

#include <zero/base/error.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/shard_layout.hpp>

namespace zero::train {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 7, 8, 16};

std::vector<std::int64_t> awkward_sizes(int n) { return {0, 1, n - 1, n, n + 1, 104729, 1 << 20}; }

void expect_sound(const ShardLayout& layout) {
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

TEST(ShardLayout, OfOneTensorIsSoundForEverySizeAndWorld) {
  for (const int n : kWorlds) {
    for (const std::int64_t size : awkward_sizes(n)) expect_sound(ShardLayout({size}, n));
  }
}

TEST(ShardLayout, OfManyTensorsIsSound) {
  std::mt19937 generator(1);
  for (const int n : kWorlds) {
    expect_sound(ShardLayout(awkward_sizes(n), n));
    for (int round = 0; round < 50; ++round) {
      std::vector<std::int64_t> sizes(generator() % 9);
      for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(generator() % 700);
      expect_sound(ShardLayout(sizes, n));
    }
  }
}

TEST(ShardLayout, OfNothingIsEmpty) {
  EXPECT_EQ(ShardLayout({}, 4).total(), 0);
  EXPECT_EQ(ShardLayout({0, 0}, 4).total(), 0);
}

TEST(ShardLayout, RefusesNonsense) {
  EXPECT_THROW(ShardLayout({5}, 0), Error);
  EXPECT_THROW(ShardLayout({5, -1}, 2), Error);
}

// The model that the ladder trains is padded by less than a ten-thousandth on up to 16 ranks, and
// by less than half a hundredth on up to 512.
TEST(ShardLayout, PadsSmolLm2Little) {
  const nn::DeferredStorage deferred;
  nn::Llama model(nn::preset("smollm2-360m"));
  const nn::ParameterList list = nn::list_parameters(model);
  for (int n = 1; n <= 512; ++n) {
    std::int64_t padding = 0;
    for (const nn::UnitInfo& unit : list.units) {
      std::vector<std::int64_t> sizes;
      for (const std::size_t i : unit.parameters) sizes.push_back(list.parameters[i].numel());
      padding += ShardLayout(sizes, n).padding();
    }
    EXPECT_LT(static_cast<double>(padding) / list.numel(), n <= 16 ? 1e-4 : 4e-3) << n;
  }
}

}  // namespace
}  // namespace zero::train

// Who owns what, and how a shard is cut. Properties that hold for every layout: nothing lost,
// nothing twice, all shards alike.

#include <gtest/gtest.h>

#include <random>

#include <tests/support/error_of.hpp>
#include <zero/train/ownership.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/shard_layout.hpp>

namespace zero::train {
namespace {

TEST(Ownership, ByCountGivesTheRemainderToTheFirstRanks) {
  EXPECT_EQ(assign_owners({1, 1, 1, 1, 1, 1, 1}, 3, Ownership::kByCount),
            (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
}

TEST(Ownership, BySizeBalancesPerfectlyWhereItCan) {
  const std::vector<std::int64_t> bytes = {9, 7, 5, 3, 9, 7, 5, 3};
  const std::vector<int> owners = assign_owners(bytes, 2, Ownership::kBySize);
  std::int64_t load[2] = {0, 0};
  for (std::size_t i = 0; i < bytes.size(); ++i) load[owners[i]] += bytes[i];
  EXPECT_EQ(load[0], load[1]);
}

TEST(Ownership, UnknownNamesAreRefused) {
  EXPECT_EQ(ownership_from("count"), Ownership::kByCount);
  EXPECT_THROW(ownership_from("cuont"), Error);
}

TEST(Registry, NamesTheNearestModeForAnUnknownOne) {
  Registry registry;
  registry.add({"zero1", "01_zero1", {"owner", "naive"}, nullptr});
  registry.check("zero1");
  registry.check("zero1:naive");
  EXPECT_EQ(registry.modes(), (std::vector<std::string>{"zero1", "zero1:naive"}));
  for (const char* wrong : {"zer1", "zero1:nave", "zero1:"}) {
    testing::expect_error([&] { registry.check(wrong); },
                          {"unknown mode '", "zero1:owner, zero1:naive"});
  }
}

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

}  // namespace
}  // namespace zero::train

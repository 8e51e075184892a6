// Who owns what, and how a shard is cut. Properties that hold for every layout: nothing lost,
// nothing twice, all shards alike.

#include <random>

#include <tests/support/shard_layout.hpp>
#include <zero/train/owners.hpp>

namespace zero::train {
namespace {

TEST(Owners, BalancePerfectlyWhereItCan) {
  const std::vector<std::int64_t> bytes = {9, 7, 5, 3, 9, 7, 5, 3};
  const std::vector<int> owners = assign_owners(bytes, 2);
  std::int64_t load[2] = {0, 0};
  for (std::size_t i = 0; i < bytes.size(); ++i) load[owners[i]] += bytes[i];
  EXPECT_EQ(load[0], load[1]);
}

constexpr int kWorlds[] = {1, 2, 3, 4, 7, 8, 16};

std::vector<std::int64_t> awkward_sizes(int n) { return {0, 1, n - 1, n, n + 1, 104729, 1 << 20}; }

TEST(ShardLayout, OfOneTensorIsSoundForEverySizeAndWorld) {
  for (const int n : kWorlds) {
    for (const std::int64_t size : awkward_sizes(n)) testing::expect_sound(ShardLayout({size}, n));
  }
}

TEST(ShardLayout, OfManyTensorsIsSound) {
  std::mt19937 generator(1);
  for (const int n : kWorlds) {
    testing::expect_sound(ShardLayout(awkward_sizes(n), n));
    for (int round = 0; round < 50; ++round) {
      std::vector<std::int64_t> sizes(generator() % 9);
      for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(generator() % 700);
      testing::expect_sound(ShardLayout(sizes, n));
    }
  }
}

TEST(ShardLayout, OfNothingIsEmpty) {
  EXPECT_EQ(ShardLayout({}, 4).total(), 0);
  EXPECT_EQ(ShardLayout({0, 0}, 4).total(), 0);
}

}  // namespace
}  // namespace zero::train

#include "sampler.hpp"

#include <numeric>
#include <set>

#include <tests/support/data_files.hpp>

#include "random.hpp"

namespace zero::data {
namespace {

using testing::error_of;
using testing::expect_error;
using testing::mentions;
using Indices = std::vector<std::int64_t>;

/// What the ranks of a world see in one step, put together in rank order.
Indices concatenated_step(std::vector<DistributedSampler>& ranks) {
  Indices all;
  std::ptrdiff_t most = std::ssize(ranks.front().global_batch()), least = 0;
  for (auto& rank : ranks) {
    const Indices part = rank.next();
    EXPECT_FALSE(part.empty());
    EXPECT_LE(std::ssize(part), most) << "the first ranks take the remainder";
    most = std::ssize(part);
    least = std::max(least, most - 1);
    EXPECT_GE(most, least);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<DistributedSampler> make_world(std::int64_t dataset_size, std::int64_t global_batch,
                                           int world_size, std::uint64_t seed) {
  std::vector<DistributedSampler> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back(dataset_size, global_batch, rank, world_size, seed);
  }
  return ranks;
}

TEST(SplitMix64, GivesThePublishedNumbers) {
  // The first outputs for seed 1234567, as other implementations of the algorithm print them.
  SplitMix64 generator(1234567);
  EXPECT_EQ(generator.next(), 6457827717110365317U);
  EXPECT_EQ(generator.next(), 3203168211198807973U);
  EXPECT_EQ(generator.next(), 9817491932198370423U);
  EXPECT_EQ(generator.next(), 4593380528125082431U);
  EXPECT_EQ(generator.next(), 16408922859458223821U);
}

TEST(Permutation, IsOneAndIsPinned) {
  for (const std::int64_t size : {0, 1, 2, 97, 1000}) {
    Indices order = permutation(size, generator_for(42, 0));
    std::ranges::sort(order);
    Indices expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
  // Another order would silently change what every saved run and every prepared file means.
  EXPECT_EQ(permutation(10, generator_for(42, 0)), (Indices{6, 1, 8, 5, 2, 7, 4, 3, 9, 0}));
}

TEST(RankSlice, RefusesRanksOutsideTheWorld) {
  expect_error([] { rank_slice(8, 2, 2); }, {"rank 2 of 2"});
  expect_error([] { rank_slice(8, -1, 2); }, {"rank -1 of 2"});
  expect_error([] { rank_slice(8, 0, 0); }, {"rank 0 of 0"});
}

TEST(DistributedSampler, ConcatenationDoesNotDependOnTheWorldSize) {
  for (const std::int64_t global_batch : {8, 9, 13, 24}) {
    for (const std::int64_t dataset_size :
         {std::int64_t{24}, 3 * global_batch + 5, std::int64_t{101}}) {
      auto alone = make_world(dataset_size, global_batch, 1, 3);
      const std::int64_t steps = 3 * alone[0].steps_per_epoch() + 1;
      std::vector<Indices> expected;
      for (std::int64_t step = 0; step < steps; ++step) {
        expected.push_back(concatenated_step(alone));
        EXPECT_EQ(expected.back().size(), static_cast<std::size_t>(global_batch));
      }
      for (const int world_size : {2, 3, 4, 7, 8}) {
        auto ranks = make_world(dataset_size, global_batch, world_size, 3);
        for (const Indices& step : expected) {
          EXPECT_EQ(ranks.front().global_batch(), step);
          EXPECT_EQ(concatenated_step(ranks), step) << world_size << " ranks";
        }
      }
    }
  }
}

TEST(DistributedSampler, AnEpochHasEverySampleOnceButTheTail) {
  for (const std::int64_t dataset_size : {8, 9, 15, 16, 101}) {
    DistributedSampler sampler(dataset_size, 8, 0, 1, 5);
    std::set<std::int64_t> seen;
    for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
      EXPECT_EQ(sampler.epoch(), 0);
      for (const std::int64_t index : sampler.global_batch()) {
        EXPECT_TRUE(index >= 0 && index < dataset_size);
        EXPECT_TRUE(seen.insert(index).second) << "sample " << index << " came twice";
      }
      sampler.next();
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), dataset_size / 8 * 8);
    EXPECT_EQ(sampler.epoch(), 1);
  }
}

TEST(DistributedSampler, SeedsAndEpochsGiveOtherOrders) {
  DistributedSampler one(64, 64, 0, 1, 1);
  DistributedSampler again(64, 64, 0, 1, 1);
  DistributedSampler two(64, 64, 0, 1, 2);
  const Indices first = one.next();
  EXPECT_EQ(again.next(), first);
  EXPECT_NE(two.next(), first);
  EXPECT_NE(one.next(), first);
}

TEST(DistributedSampler, ContinuesWhereItWasOnAnotherNumberOfRanks) {
  for (const int steps : {0, 1, 12, 25, 26}) {
    auto before = make_world(101, 8, 4, 9);
    for (int step = 0; step < steps; ++step) {
      concatenated_step(before);
    }
    auto after = make_world(101, 8, 3, 9);
    for (auto& rank : after) {
      rank.restore(before[0].state());
      EXPECT_EQ(rank.step(), steps);
    }
    for (int step = 0; step < 15; ++step) {
      EXPECT_EQ(concatenated_step(after), concatenated_step(before));
    }
  }
}

TEST(DistributedSampler, GoesBackToAnEarlierEpoch) {
  DistributedSampler sampler(24, 8, 0, 1, 9);
  const DistributedSampler::State start = sampler.state();
  const Indices first = sampler.next();
  while (sampler.epoch() == 0) sampler.next();
  EXPECT_NE(sampler.next(), first);
  sampler.restore(start);
  EXPECT_EQ(sampler.next(), first);
}

TEST(DistributedSampler, RefusesThePositionOfAnotherRun) {
  const DistributedSampler::State good{9, 101, 8, 4};
  const auto refusal = [](DistributedSampler::State state) {
    DistributedSampler sampler(101, 8, 0, 1, 9);
    return error_of([&] { sampler.restore(state); });
  };
  EXPECT_EQ(refusal(good), "");
  EXPECT_TRUE(mentions(refusal({8, 101, 8, 4}), "seed 8"));
  EXPECT_TRUE(mentions(refusal({9, 100, 8, 4}), "100 samples"));
  EXPECT_TRUE(mentions(refusal({9, 101, 16, 4}), "global batch 16"));
  EXPECT_TRUE(mentions(refusal({9, 101, 8, -1}), "step -1"));
}

TEST(DistributedSampler, RefusesSizesThatCannotWork) {
  const auto refusal = [](std::int64_t dataset_size, std::int64_t global_batch, int world_size) {
    return error_of([&] { DistributedSampler(dataset_size, global_batch, 0, world_size, 0); });
  };
  EXPECT_EQ(refusal(8, 8, 8), "");
  EXPECT_TRUE(mentions(refusal(7, 8, 1), "has 7 samples, one step over all ranks takes 8"));
  EXPECT_TRUE(mentions(refusal(0, 1, 1), "has 0 samples"));
  EXPECT_TRUE(mentions(refusal(100, 3, 4), "global batch of 3 leaves some of 4 ranks"));
  EXPECT_TRUE(mentions(refusal(100, 0, 1), "global batch of 0"));
  EXPECT_TRUE(mentions(refusal(100, -5, 1), "global batch of -5"));
}

}  // namespace
}  // namespace zero::data

#include "lookahead.hpp"

#include <gmock/gmock.h>

#include <thread>

namespace zero {
namespace {

using ::testing::HasSubstr;

constexpr double kMs = 1e-3;
constexpr std::int64_t kRoomy = 1000;

UnitTimes equal_units(std::size_t count, double gather, double compute) {
  return {std::vector<double>(count, gather), std::vector<double>(count, compute)};
}

LookaheadChoice choice(const UnitTimes& times, std::int64_t room = kRoomy) {
  return choose_lookahead({times}, room);
}

TEST(Lookahead, SaysThatBandwidthIsTheLimit) {
  const LookaheadChoice found = choice(equal_units(32, 16 * kMs, 10 * kMs));
  EXPECT_THAT(found.why, HasSubstr("bandwidth is the limit: gathers take 512.00 ms in a pass that "
                                   "computes for 320.00 ms"));
  EXPECT_EQ(found.units, 1);  // more would only wait in another place
}

TEST(Lookahead, SaysWhatTheOrderOfTheUnitsLeaves) {
  // Together the gathers are shorter than computing, but too little comes before the large one.
  EXPECT_THAT(choice({{0, 29 * kMs}, {1 * kMs, 30 * kMs}}).why, HasSubstr("wait for 28.00 ms"));
  // Each of the two large gathers fits behind two units, but not one behind the other.
  UnitTimes times = equal_units(7, 1 * kMs, 2 * kMs);
  times.gather[2] = times.gather[3] = 4 * kMs;
  EXPECT_EQ(choice(times).units, 2);
  EXPECT_THAT(choice(times).why, HasSubstr("wait for 3.00 ms"));
}

TEST(Lookahead, ReachesFurtherWhereGathersQueue) {
  UnitTimes times = equal_units(6, 4 * kMs, 10 * kMs);
  times.gather[4] = 14 * kMs;
  times.gather[5] = 18 * kMs;
  EXPECT_EQ(choice(times).units, 3);
  EXPECT_THAT(choice(times).why, HasSubstr("gathers of up to 18.00 ms are hidden"));
}

TEST(Lookahead, DoesNotReachFurtherForAHundredthOfTheComputing) {
  UnitTimes times = equal_units(8, 0.05 * kMs, 10 * kMs);
  EXPECT_EQ(choice(times).units, 0);
  EXPECT_THAT(choice(times).why, HasSubstr("on demand take 0.40 ms"));
  times.gather[5] = 10.5 * kMs;  // with one unit ahead 0.5 ms are left of it, of 80
  EXPECT_EQ(choice(times).units, 1);
  times.gather[5] = 11.5 * kMs;
  EXPECT_EQ(choice(times).units, 2);
}

TEST(Lookahead, SaysThatMemoryIsTheLimit) {
  UnitTimes times = equal_units(8, 1 * kMs, 10 * kMs);
  times.gather[5] = 35 * kMs;
  const LookaheadChoice found = choice(times, /*room=*/3);
  EXPECT_EQ(found.units, 3);
  EXPECT_THAT(found.why, HasSubstr("memory is the limit: 4 units ahead"));
  // Unit 2 takes no time, so to ask for unit 5 when it begins is as late as when unit 3 does.
  times.compute[2] = 0;
  times.gather[4] = 0.5 * kMs;  // in the way, for less than a hundredth
  EXPECT_EQ(choice(times, /*room=*/3).units, 2);
  EXPECT_THAT(choice(times, /*room=*/3).why, HasSubstr("5 units ahead would hide more"));
}

TEST(Lookahead, GoesByThePassThatNeedsMost) {
  UnitTimes backward = equal_units(8, 1 * kMs, 10 * kMs);
  backward.gather[7] = 15 * kMs;
  EXPECT_EQ(choose_lookahead({equal_units(8, 1 * kMs, 10 * kMs), backward}, kRoomy).units, 2);
  EXPECT_EQ(choose_lookahead({}, kRoomy).units, 0);
  EXPECT_EQ(choose_lookahead({{}, {}}, kRoomy).units, 0);
}

TEST(LeastOverRanks, TakesEachTimeFromTheRankWhereItIsLeast) {
  const std::vector<UnitTimes> mine = {{{5, 2}, {7, 8}}, {{3}, {4}}};
  const std::vector<double> of_rank_1 = {1, 6, 9, 3, 2, 5};
  const std::vector<UnitTimes> least = least_over_ranks(mine, [&](std::vector<double> all) {
    all.insert(all.end(), of_rank_1.begin(), of_rank_1.end());
    return all;
  });
  ASSERT_EQ(least.size(), 2u);
  EXPECT_EQ(least[0].gather, (std::vector<double>{1, 2}));
  EXPECT_EQ(least[0].compute, (std::vector<double>{7, 3}));
  EXPECT_EQ(least[1].gather, (std::vector<double>{2}));
  EXPECT_EQ(least[1].compute, (std::vector<double>{4}));
}

TEST(PassClock, TimesGathersAndUnitsAndKeepsTheLeast) {
  // What the clock measures is time.
  const auto wait = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  PassClock clock;
  const auto pass = [&](int slow_gather, int slow_unit) {
    clock.begin();
    wait(30);  // before the first unit: nobody's
    clock.asks();
    wait(slow_gather);
    clock.runs();
    wait(1);
    clock.asks();
    wait(1);
    clock.runs();
    wait(slow_unit);
    clock.end();
  };
  pass(20, 1);
  ASSERT_EQ(clock.least().gather.size(), 2u);
  ASSERT_EQ(clock.least().compute.size(), 2u);
  EXPECT_GE(clock.least().gather[0], 20 * kMs);
  EXPECT_GE(clock.least().compute[1], 1 * kMs);
  EXPECT_LT(clock.least().compute[0], clock.least().gather[0] + 30 * kMs);
  const double first = clock.least().gather[0];
  pass(1, 20);
  EXPECT_LT(clock.least().gather[0], first);
  // A pass of another length is another graph.
  clock.begin();
  clock.asks();
  clock.runs();
  clock.end();
  EXPECT_EQ(clock.least().gather.size(), 1u);
}

}  // namespace
}  // namespace zero

// Model states against the figures of the literature.
#include "states.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <zero/base/error.hpp>

#include "quantity.hpp"

namespace zero::plan {
namespace {

double states_in(Unit unit, std::int64_t parameters, const Policy& policy, Stage stage,
                 std::int64_t n) {
  return static_cast<double>(model_states(parameters, policy, stage, n).total()) /
         static_cast<double>(bytes_of(unit));
}

TEST(ModelStates, ByKindAndStage) {
  const Policy policy = mixed();
  EXPECT_EQ(model_states(100, policy, Stage::kDdp, 4), (States{200, 200, 1200}));
  EXPECT_EQ(model_states(100, policy, Stage::kZero1, 4), (States{200, 200, 300}));
  EXPECT_EQ(model_states(100, policy, Stage::kZero2, 4), (States{200, 50, 300}));
  EXPECT_EQ(model_states(100, policy, Stage::kZero3, 4), (States{50, 50, 300}));
  EXPECT_EQ(model_states(100, fp32(), Stage::kZero2, 4), (States{400, 100, 200}));
}

TEST(ModelStates, AShardThatDoesNotDivideIsRoundedUp) {
  EXPECT_EQ(model_states(101, mixed(), Stage::kZero3, 4), (States{52, 52, 312}));
  EXPECT_EQ(model_states(1, mixed(), Stage::kZero3, 1'000'000), (States{2, 2, 12}));
}

TEST(ModelStates, LimitsAre16P4P2PAndNothing) {
  const std::int64_t expected[] = {16, 4, 2, 0};
  for (const Stage stage : kStages) {
    EXPECT_EQ(states_at_limit(1, mixed(), stage).total(), expected[static_cast<int>(stage)]);
  }
}

TEST(ModelStates, PoliciesAddUpTo16) {
  EXPECT_EQ(fp32().total(), 16);
  EXPECT_EQ(mixed().total(), 16);
  EXPECT_EQ(fp32("momentum").total(), 12);
  EXPECT_EQ(fp32("sgd").optimizer, 0);
  EXPECT_EQ(mixed("sgd").optimizer, 4);
  EXPECT_EQ(mixed_without_master().optimizer, 8);
  EXPECT_EQ(policy("bf16", "adamw").total(), 16);
  EXPECT_THROW(policy("fp8", "adamw"), Error);
  EXPECT_THROW(policy("fp32", "adam"), Error);
  EXPECT_THROW(model_states(1, mixed(), Stage::kDdp, 0), Error);
}

struct Ratios {
  std::int64_t n;
  double fp32[3];
  double mixed[3];
};

class RatioTable : public ::testing::TestWithParam<Ratios> {};

TEST_P(RatioTable, IsAsPublished) {
  const Stage sharded[] = {Stage::kZero1, Stage::kZero2, Stage::kZero3};
  for (int i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(ratio_to_ddp(fp32(), sharded[i], GetParam().n), GetParam().fp32[i]);
    EXPECT_DOUBLE_EQ(ratio_to_ddp(mixed(), sharded[i], GetParam().n), GetParam().mixed[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RatioTable,
                         ::testing::Values(Ratios{2, {.75, .625, .5}, {.625, .5625, .5}},
                                           Ratios{4, {.625, .4375, .25}, {.4375, .34375, .25}},
                                           Ratios{
                                               8, {.5625, .34375, .125}, {.34375, .234375, .125}}));

TEST(ModelStates, Zero1SavesTwoThirdsAt8AndThreeQuartersAt64) {
  EXPECT_DOUBLE_EQ(bytes_per_parameter(mixed(), Stage::kZero1, 8), 5.5);
  EXPECT_NEAR(bytes_per_parameter(mixed(), Stage::kZero1, 64), 4.19, 0.005);
  EXPECT_EQ(static_cast<int>(100 * (1 - ratio_to_ddp(mixed(), Stage::kZero1, 8))), 65);
  EXPECT_NEAR(100 * (1 - ratio_to_ddp(mixed(), Stage::kZero1, 64)), 74, 0.5);
}

TEST(ModelStates, ReductionFactors) {
  const double expected[3][3] = {{2.3, 2.9, 3.8}, {2.9, 4.3, 7.2}, {4, 8, 64}};
  const Stage sharded[] = {Stage::kZero1, Stage::kZero2, Stage::kZero3};
  const std::int64_t ranks[] = {4, 8, 64};
  for (int s = 0; s < 3; ++s) {
    for (int n = 0; n < 3; ++n) {
      EXPECT_NEAR(reduction_factor(mixed(), sharded[s], ranks[n]), expected[s][n], 0.05);
    }
  }
}

TEST(ModelStates, DdpAt1024RanksIsRedundantBut1In1024) {
  EXPECT_NEAR(100 * redundant_share(1024), 99.9, 0.05);
  EXPECT_DOUBLE_EQ(1 - redundant_share(8), 1.0 / 8);
  EXPECT_EQ(redundant_share(1), 0);
}

struct Row {
  std::int64_t n;
  double ddp, zero1, zero2, zero3;
};

void expect_row(const Row& row, Unit unit, std::int64_t parameters, const Policy& policy,
                double tolerance) {
  EXPECT_NEAR(states_in(unit, parameters, policy, Stage::kDdp, row.n), row.ddp, tolerance);
  EXPECT_NEAR(states_in(unit, parameters, policy, Stage::kZero1, row.n), row.zero1, tolerance);
  EXPECT_NEAR(states_in(unit, parameters, policy, Stage::kZero2, row.n), row.zero2, tolerance);
  EXPECT_NEAR(states_in(unit, parameters, policy, Stage::kZero3, row.n), row.zero3, tolerance);
}

TEST(ModelStates, OneAndAHalfBillionInGiB) {
  for (const Row& row : {Row{1, 22.35, 22.35, 22.35, 22.35}, Row{2, 22.35, 13.97, 12.57, 11.18},
                         Row{8, 22.35, 7.68, 5.24, 2.79}, Row{32, 22.35, 6.11, 3.41, 0.70},
                         Row{128, 22.35, 5.72, 2.95, 0.17}, Row{512, 22.35, 5.62, 2.83, 0.04}}) {
    SCOPED_TRACE(row.n);
    expect_row(row, Unit::kGiB, 3 * kBillion / 2, mixed(), 0.005);
  }
}

TEST(ModelStates, SevenBillionInGB) {
  for (const Row& row : {Row{4, 112, 49, 38.5, 28}, Row{8, 112, 38.5, 26.25, 14}}) {
    expect_row(row, Unit::kGB, 7 * kBillion, mixed(), 1e-9);
  }
  expect_row({64, 112, 29.3, 15.5, 1.75}, Unit::kGB, 7 * kBillion, mixed(), 0.05);
  expect_row({256, 112, 28.3, 14.4, 0.4375}, Unit::kGB, 7 * kBillion, mixed(), 0.05);
  EXPECT_DOUBLE_EQ(states_in(Unit::kGB, 7 * kBillion, mixed(), Stage::kZero3, 256), 0.4375);
  expect_row({8, 112, 63, 38.5, 14}, Unit::kGB, 7 * kBillion, fp32(), 1e-9);
}

TEST(ModelStates, ThirteenBillionInGB) {
  constexpr std::int64_t kParameters = 13 * kBillion;
  EXPECT_DOUBLE_EQ(states_in(Unit::kGB, kParameters, mixed(), Stage::kDdp, 8), 208);
  EXPECT_DOUBLE_EQ(states_in(Unit::kGB, kParameters, mixed(), Stage::kZero2, 8), 48.75);
  EXPECT_DOUBLE_EQ(states_in(Unit::kGB, kParameters, mixed(), Stage::kZero3, 8), 26);
  EXPECT_DOUBLE_EQ(states_in(Unit::kGB, kParameters, mixed(), Stage::kZero3, 32), 6.5);
  EXPECT_NEAR(states_in(Unit::kGB, kParameters, mixed(), Stage::kZero3, 9), 23.1, 0.05);
  EXPECT_NEAR(states_in(Unit::kGB, kParameters, mixed(), Stage::kZero3, 12), 17.3, 0.05);
  EXPECT_NEAR(states_in(Unit::kGB, kParameters, mixed(), Stage::kZero3, 16), 13, 1e-9);
}

std::int64_t offloaded(std::int64_t n) {
  return with_offloaded_optimizer(model_states(3 * kBillion / 2, mixed(), Stage::kZero3, n))
      .total();
}

TEST(ModelStates, OffloadKeeps4POverN) {
  EXPECT_NEAR(static_cast<double>(offloaded(6)) / static_cast<double>(kGiB), 0.93, 0.005);
  EXPECT_EQ(fewest_ranks(kGiB, 1, offloaded), 6);
  EXPECT_EQ(fewest_ranks(kGB - 1, 1, offloaded), 7);
  // Under, not exactly, 1 GB; of the powers of two 8 is the first under either.
  EXPECT_EQ(offloaded(6), kGB);
  EXPECT_GT(offloaded(4), kGiB);
  EXPECT_LT(offloaded(8), kGB);
  const States thirteen =
      with_offloaded_optimizer(model_states(13 * kBillion, mixed(), Stage::kZero3, 8));
  EXPECT_EQ(thirteen.total(), 6'500'000'000);
}

TEST(ModelStates, GradientsThatAreZeroedStay) {
  const std::int64_t kept = resident_gradients(1000, mixed(), 8, Unowned::kKept);
  EXPECT_EQ(kept, 2000);
  EXPECT_EQ(resident_gradients(1000, mixed(), 8, Unowned::kZeroed), kept);
  EXPECT_EQ(resident_gradients(1000, mixed(), 8, Unowned::kFreed), 250);
}

TEST(FewestRanks, IsTheFirstThatFitsAndNeverOneThatDoesNot) {
  const auto needed = [](std::int64_t n) {
    return model_states(1000, mixed(), Stage::kZero3, n).total();
  };
  for (std::int64_t limit = 16; limit < 16'100; limit += 7) {
    const auto n = fewest_ranks(limit, 1, needed);
    ASSERT_TRUE(n.has_value()) << limit;
    EXPECT_LE(needed(*n), limit);
    if (*n > 1) {
      EXPECT_GT(needed(*n - 1), limit);
    }
  }
  EXPECT_EQ(fewest_ranks(15, 1, needed), std::nullopt);
  EXPECT_EQ(fewest_ranks(16'000, 5, needed), 5);
}

TEST(FewestRanks, OneAndAHalfBillionNeverFit16GBUnderDdp) {
  const auto needed = [](std::int64_t n) {
    return model_states(3 * kBillion / 2, mixed(), Stage::kDdp, n).total();
  };
  EXPECT_EQ(fewest_ranks(16 * kGB, 1, needed), std::nullopt);
  EXPECT_EQ(fewest_ranks(24 * kGB, 1, needed), 1);
}

}  // namespace
}  // namespace zero::plan

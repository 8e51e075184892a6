// Model states against the figures of the literature.
#include "states.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

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

TEST(ModelStates, PoliciesAddUpTo16) {
  EXPECT_EQ(fp32().total(), 16);
  EXPECT_EQ(mixed().total(), 16);
  EXPECT_EQ(fp32("momentum").total(), 12);
  EXPECT_EQ(fp32("sgd").optimizer, 0);
  EXPECT_EQ(mixed("sgd").optimizer, 4);
  EXPECT_EQ(policy("bf16", "adamw").total(), 16);
  EXPECT_THROW(policy("fp8", "adamw"), Error);
  EXPECT_THROW(policy("fp32", "adam"), Error);
  EXPECT_THROW(model_states(1, mixed(), Stage::kDdp, 0), Error);
}

TEST(ModelStates, DdpAt1024RanksIsRedundantBut1In1024) {
  EXPECT_NEAR(100 * redundant_share(1024), 99.9, 0.05);
  EXPECT_DOUBLE_EQ(1 - redundant_share(8), 1.0 / 8);
  EXPECT_EQ(redundant_share(1), 0);
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

}  // namespace
}  // namespace zero::plan

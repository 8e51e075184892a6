// What stages hold and send against the figures of the literature.
#include "stages.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

#include "model.hpp"

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
  EXPECT_EQ(policy("fp32", "momentum").total(), 12);
  EXPECT_EQ(policy("fp32", "sgd").optimizer, 0);
  EXPECT_EQ(policy("mixed", "sgd").optimizer, 4);
  EXPECT_EQ(policy("bf16", "adamw").total(), 16);
  EXPECT_THROW(policy("fp8", "adamw"), Error);
  EXPECT_THROW(policy("fp32", "adam"), Error);
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

TEST(Traffic, GradientsAndParametersMayHaveOtherDtypes) {
  const Traffic traffic = sent(Scheme::kZero3, {/*gradients=*/400, /*parameters=*/100}, 2);
  EXPECT_DOUBLE_EQ(traffic.gradients_reduced, 200);
  EXPECT_DOUBLE_EQ(traffic.parameters_gathered, 100);
}

TEST(Traffic, KeepingTheRootOfSmolLm2Saves) {
  const Model model = model_of(nn::preset("smollm2-360m"), "");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  EXPECT_NEAR(sent(Scheme::kZero3, {1, 1}, 2, kept).total(), 1.435, 0.0005);
}

TEST(TensorParallelism, CrossesZero3AtFourAndAHalfHidden) {
  constexpr std::int64_t kHidden = 4096;
  constexpr std::int64_t kLayer = 12 * kHidden * kHidden;
  const std::int64_t even = tensor_parallel_crossover(kLayer, kHidden, mixed());
  EXPECT_EQ(even, 9 * kHidden / 2 + 1);
  for (const std::int64_t n : {2, 8}) {
    const double zero3 = sent(Scheme::kZero3, copies(kLayer, mixed()), n).total();
    EXPECT_LT(zero3, tensor_parallel_sent(even, kHidden, 2, n));
    EXPECT_GE(zero3, tensor_parallel_sent(even - 1, kHidden, 2, n));
  }
  EXPECT_DOUBLE_EQ(tensor_parallel_sent(10, 100, 2, 2), 8 * 10 * 100 * 2 / 2.0);
}

}  // namespace
}  // namespace zero::plan

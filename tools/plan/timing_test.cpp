#include "timing.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

using Times = std::vector<double>;

TEST(Compute, IsSixOperationsAParameterAndToken) {
  const Machine machine{.flops = 1e12};
  EXPECT_DOUBLE_EQ(compute_seconds(kBillion, 1000, machine), 6);
  EXPECT_DOUBLE_EQ(compute_seconds(kBillion, 1000, machine, /*recomputes=*/true), 8);
  EXPECT_DOUBLE_EQ(unit_forward_seconds(kBillion, 1000, machine), 2);
}

TEST(BreakEvenBatches, AreLessThanTheShareAndNotEqualToIt) {
  const Machine machine{.flops = 6};  // a sample of one parameter and one token takes a second
  EXPECT_EQ(break_even_batch(1.0, 1, 1, 0.5, machine), 3);
  EXPECT_EQ(break_even_batch(0.9, 1, 1, 0.5, machine), 2);
  EXPECT_EQ(break_even_batch(0.0, 1, 1, 0.5, machine), 1);
  EXPECT_EQ(break_even_batch(1e12, 1, 1, 0.5, machine), std::nullopt);
}

TEST(Lookahead, OfEqualUnits) {
  for (const double gather : {2e-3, 4e-3, 8e-3, 16e-3}) {
    const std::int64_t k = gather > 10e-3 ? 2 : 1;
    EXPECT_EQ(lookahead(gather, 10e-3), k);
    EXPECT_EQ(lookahead(Times(32, gather), Times(32, 10e-3)), k);
  }
  EXPECT_EQ(lookahead(0, 1), 0);
  EXPECT_EQ(lookahead(Times{0, 0}, Times{1, 1}), 0);
  EXPECT_THROW(lookahead(1, 0), Error);
}

TEST(Lookahead, CannotHelpWhereGatheringTakesLongerThanAllComputing) {
  EXPECT_EQ(lookahead(Times(4, 4.0), Times(4, 1.0)), 4);
  EXPECT_EQ(lookahead(Times(4, 4.1), Times(4, 1.0)), std::nullopt);
  EXPECT_THROW(lookahead(Times{1}, Times{1, 2}), Error);
}

// By its definition, for all that 4 units of few seconds can be.
TEST(Lookahead, IsTheSmallestThatHidesEveryGather) {
  const auto hides = [](const Times& gather, const Times& compute, std::size_t k) {
    for (std::size_t i = 0; i + k < gather.size(); ++i) {
      double covered = 0;
      for (std::size_t j = i; j < i + k; ++j) covered += compute[j];
      if (covered < gather[i + k]) return false;
    }
    return true;
  };
  for (int n = 0; n < 1 << 14; ++n) {
    const auto digit = [n](int i) { return static_cast<double>((n >> (2 * i)) & 3); };
    const Times gather = {1, digit(0), 2 * digit(1), 2 * digit(2)};
    const Times compute = {digit(3), digit(4), digit(5), digit(6)};
    const auto found = lookahead(gather, compute);
    for (std::int64_t k = 1; k < found.value_or(4); ++k) EXPECT_FALSE(hides(gather, compute, k));
    EXPECT_TRUE(found.value_or(4) == 4 || hides(gather, compute, *found));
  }
}

// So many that the time must not grow with the cube of their number.
TEST(Lookahead, OfTheMostUnits) {
  Times gather(nn::kMostLayers, 0.0);
  gather.back() = static_cast<double>(nn::kMostLayers);
  EXPECT_EQ(lookahead(gather, Times(nn::kMostLayers, 1.0)), nn::kMostLayers);
  gather.back() = 9000;
  EXPECT_EQ(lookahead(gather, Times(nn::kMostLayers, 1.0)), 9000);
}

TEST(Exposed, IsWhatOneLinkCannotHide) {
  const Pass even{Times(4, 1.0), Times(4, 2.0), Times(4, 0.0)};
  EXPECT_DOUBLE_EQ(exposed_seconds(even, 0), 4);  // every gather waits
  EXPECT_DOUBLE_EQ(exposed_seconds(even, 1), 1);  // only the first
  EXPECT_DOUBLE_EQ(exposed_seconds(even, 4), 1);
  const Pass narrow{Times(4, 3.0), Times(4, 2.0), Times(4, 0.0)};
  EXPECT_DOUBLE_EQ(exposed_seconds(narrow, 1), 4 * 3 + 2 - 8);
  EXPECT_DOUBLE_EQ(exposed_seconds(narrow, 3), 4 * 3 + 2 - 8);  // no lookahead adds a link
}

TEST(Exposed, ReductionsHideBehindTheNextUnit) {
  const Pass backward{Times(4, 0.0), Times(4, 2.0), Times(4, 1.0)};
  EXPECT_DOUBLE_EQ(exposed_seconds(backward, 0), 1);
  const Pass slow{Times(4, 0.0), Times(4, 2.0), Times(4, 3.0)};
  EXPECT_DOUBLE_EQ(exposed_seconds(slow, 0), 2 + 4 * 3 - 8);
}

TEST(StepTime, OneRankOnlyComputes) {
  const Model model = model_of_size(7 * kBillion, 32);
  for (const Stage stage : kStages) {
    const StepTime time = step_time(model, mixed(), stage, 1, 2048, 1, false, {});
    EXPECT_EQ(time.communication, 0);
    EXPECT_EQ(time.exposed, 0);
    EXPECT_NEAR(time.compute, compute_seconds(7 * kBillion, 2048, {}), 1e-9);
  }
}

// 8 operations for each parameter and token where there were 6.
TEST(StepTime, RecomputingIsAnotherForward) {
  const Model model = model_of_size(7 * kBillion, 32);
  const auto compute = [&](bool recomputes) {
    return step_time(model, mixed(), Stage::kZero3, 8, 2048, 1, recomputes, {}).compute;
  };
  EXPECT_NEAR(compute(true) / compute(false), 8.0 / 6, 1e-9);
}

TEST(StepTime, CommunicationIsBytesAndCollectives) {
  const Model model = model_of(nn::preset("smollm2-360m"), "");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  const Machine machine{.bandwidth = 1e9, .latency = 1e-3, .flops = 1e12};
  for (const Stage stage : kStages) {
    const double bytes = sent(scheme_of(stage), copies(model.parameters, mixed()), 4, kept).total();
    // Of 33 units, the root among them, an all-reduce counts twice; stage 3 gathers all but the
    // root again.
    const std::int64_t calls = stage == Stage::kZero3 ? 3 * 33 - 1 : 2 * 33;
    const StepTime time = step_time(model, mixed(), stage, 4, 128, 1, false, machine);
    EXPECT_NEAR(time.communication, communication_seconds(bytes, calls, machine), 1e-9)
        << name(stage);
    EXPECT_LE(time.exposed, time.communication + 1e-9);
    EXPECT_GT(time.exposed, 0);
  }
}

TEST(Activations, AreCountedOrRefused) {
  Shape shape = model_of_size(7 * kBillion, 32).shape;
  shape.hidden = shape.attention = 4096;
  shape.mlp = 4 * 4096;
  EXPECT_EQ(layer_elements(shape), 16 * 4096);
  EXPECT_THROW(activation_bytes(shape, std::int64_t{1} << 50, 2), Error);
}

TEST(Activations, LogitsCountTwice) {
  const Shape shape{.layers = 1, .hidden = 1, .attention = 1, .mlp = 1, .vocabulary = 100};
  EXPECT_EQ(activation_bytes(shape, 3, 4) - activation_bytes({1, 1, 1, 1}, 3, 4), 200 * 3 * 4);
}

TEST(Hybrid, SplitsAModelByItsUnits) {
  Model model = model_of_size(300, 3);
  model.root = 50;
  model.parameters += 50;
  model.units = {99, 100, 101};
  EXPECT_EQ(hybrid(model, mixed(), 8, 100).large, 201);
  EXPECT_EQ(hybrid(model, mixed(), 8, 100).small, 149);
  // A large root is sharded as well, and gathered once a step.
  const Hybrid all = hybrid(model, mixed(), 8, 50);
  EXPECT_EQ(all.small, 0);
  EXPECT_DOUBLE_EQ(all.sent, (300 * 6 + 50 * 4) * 7 / 8.0);
  EXPECT_EQ(hybrid(model_of_size(7 * kBillion, 32), mixed(), 8).small, 0);
  EXPECT_EQ(hybrid(model_of(nn::preset("smollm2-360m"), ""), mixed(), 8).large, 0);
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

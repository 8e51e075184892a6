#include "timing.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

TEST(Compute, IsSixOperationsAParameterAndToken) {
  const Machine machine{.flops = 1e12};
  EXPECT_DOUBLE_EQ(compute_seconds(kBillion, 1000, machine), 6);
  EXPECT_DOUBLE_EQ(forward_seconds(kBillion, 1000, machine), 2);
}

TEST(BreakEvenBatches, AreLessThanTheShareAndNotEqualToIt) {
  const Machine machine{.flops = 6};  // a sample of one parameter and one token takes a second
  EXPECT_EQ(break_even_batch(1.0, 1, 1, 0.5, machine), 3);
  EXPECT_EQ(break_even_batch(0.9, 1, 1, 0.5, machine), 2);
  EXPECT_EQ(break_even_batch(0.0, 1, 1, 0.5, machine), 1);
  EXPECT_EQ(break_even_batch(1e12, 1, 1, 0.5, machine), std::nullopt);
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

}  // namespace
}  // namespace zero::plan

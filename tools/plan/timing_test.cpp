#include <gtest/gtest.h>

#include "planner.hpp"

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

Request seven_billion() {
  Request request;
  request.model = model_of_size(7 * kBillion, 32);
  return request;
}

TEST(StepTime, OneRankOnlyComputes) {
  Request request = seven_billion();
  request.world_size = 1;
  for (const Stage stage : kStages) {
    const StepTime time = step_time(request, stage, 1);
    EXPECT_EQ(time.communication, 0);
    EXPECT_EQ(time.exposed, 0);
    EXPECT_NEAR(time.compute, compute_seconds(7 * kBillion, 2048, {}), 1e-9);
  }
}

// 8 operations for each parameter and token where there were 6.
TEST(StepTime, RecomputingIsAnotherForward) {
  Request request = seven_billion();
  const auto compute = [&](bool recomputes) {
    request.recompute = recomputes;
    return step_time(request, Stage::kZero3, 1).compute;
  };
  EXPECT_NEAR(compute(true) / compute(false), 8.0 / 6, 1e-9);
}

TEST(StepTime, CommunicationIsBytesAndCollectives) {
  Request request;
  request.model = model_of(nn::preset("smollm2-360m"), "");
  request.world_size = 4;
  request.sequence = 128;
  request.machine = {.bandwidth = 1e9, .latency = 1e-3, .flops = 1e12};
  const Model& model = request.model;
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  for (const Stage stage : kStages) {
    const double bytes = sent(scheme_of(stage), copies(model.parameters, mixed()), 4, kept).total();
    // Of 33 units, the root among them, an all-reduce counts twice; stage 3 gathers all but the
    // root again.
    const std::int64_t calls = stage == Stage::kZero3 ? 3 * 33 - 1 : 2 * 33;
    const StepTime time = step_time(request, stage, 1);
    EXPECT_NEAR(time.communication, communication_seconds(bytes, calls, request.machine), 1e-9)
        << name(stage);
    EXPECT_LE(time.exposed, time.communication + 1e-9);
    EXPECT_GT(time.exposed, 0);
  }
}

}  // namespace
}  // namespace zero::plan

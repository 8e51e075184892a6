// The memory timeline of the ladder: bytes of a step by category, the same for every stage.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

json memory_timeline_of(const TestFolder& folder, const std::string& options) {
  const ProcessResult ended = run_ladder(folder, kQuick + options + " --memory-timeline " +
                                                     (folder / "memory_timeline.json").string());
  EXPECT_EQ(ended.code, 0) << ended.said;
  return json::parse(testing::read_bytes(folder / "memory_timeline.json"));
}

double most(const json& mode, const char* category) {
  double largest = 0;
  for (const json& sample : mode.at("samples")) {
    largest = std::max(largest, sample.value(category, 0.0));
  }
  return largest;
}

TEST(MemoryTimeline, ShowsWhatEachStageStopsHolding) {
  const TestFolder folder;
  const json memory_timeline = memory_timeline_of(folder, "");
  ASSERT_EQ(memory_timeline.at("modes").size(), 4U);
  const json& ddp = memory_timeline["modes"][0];
  const json& zero1 = memory_timeline["modes"][1];
  const json& zero2 = memory_timeline["modes"][2];
  const json& zero3 = memory_timeline["modes"][3];
  EXPECT_EQ(ddp.at("mode"), "ddp");
  EXPECT_LT(most(zero1, "optimizer"), 0.6 * most(ddp, "optimizer"));
  EXPECT_EQ(most(zero1, "gradients"), most(ddp, "gradients"));
  EXPECT_LT(most(zero2, "gradients"), most(ddp, "gradients"));
  EXPECT_EQ(most(zero2, "parameters"), most(ddp, "parameters"));
  EXPECT_LT(most(zero3, "parameters"), most(ddp, "parameters"));
}

TEST(MemoryTimeline, HasThePhasesInOrderAndTimeThatGoesForward) {
  const TestFolder folder;
  const json memory_timeline = memory_timeline_of(folder, "--modes ddp");
  const json& mode = memory_timeline.at("modes").at(0);
  std::vector<std::string> labels;
  for (const json& mark : mode.at("marks")) labels.push_back(mark.at("label"));
  EXPECT_EQ(labels, (std::vector<std::string>{"forward", "backward", "optimizer", "sync"}));
  double last = 0;
  for (const json& sample : mode.at("samples")) {
    EXPECT_GE(sample.at("t").get<double>(), last);
    last = sample.at("t");
  }
  EXPECT_GE(last, mode.at("marks").back().at("t").get<double>())
      << "the memory timeline ends too early";
}

}  // namespace
}  // namespace zero::ladder

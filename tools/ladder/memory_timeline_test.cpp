// The memory timeline of the ladder: bytes of a step by category, the same for every stage.

#include <algorithm>
#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::kQuick;
using testing::TestFolder;

double most(const json& mode, const char* category) {
  double largest = 0;
  for (const json& sample : mode.at("samples")) {
    largest = std::max(largest, sample.value(category, 0.0));
  }
  return largest;
}

TEST(MemoryTimeline, ShowsWhatEachStageStopsHolding) {
  const TestFolder folder;
  const std::string path = (folder / "memory_timeline.json").string();
  testing::figures_of(folder, kQuick + "--memory-timeline " + path);
  const json modes = json::parse(testing::read_bytes(path)).at("modes");
  ASSERT_EQ(modes.size(), 4U);
  const json &ddp = modes[0], &zero1 = modes[1], &zero2 = modes[2], &zero3 = modes[3];
  EXPECT_EQ(ddp.at("mode"), "ddp");
  EXPECT_LT(most(zero1, "optimizer"), 0.6 * most(ddp, "optimizer"));
  EXPECT_EQ(most(zero1, "gradients"), most(ddp, "gradients"));
  EXPECT_LT(most(zero2, "gradients"), most(ddp, "gradients"));
  EXPECT_EQ(most(zero2, "parameters"), most(ddp, "parameters"));
  EXPECT_LT(most(zero3, "parameters"), most(ddp, "parameters"));
}

}  // namespace
}  // namespace zero::ladder

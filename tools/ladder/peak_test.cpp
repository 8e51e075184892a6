// The peaks in the ladder's figures: each stage's is lower than that of the one before, and
// within what the planner says.

#include <tests/support/ladder_program.hpp>
#include <tools/plan/planner.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

// tests/peak_test.cpp has the bounds of each stage.
TEST(Peaks, FallFromStageToStageAndStayWithinThePlanners) {
  const testing::TestFolder folder;
  const nlohmann::json modes =
      testing::figures_of(folder,
                          "--model tiny --steps 2 --seq-len 8 --nproc 4 --timeout 30 "
                          "--no-compute-alone --modes ddp,zero1,zero2,zero3")
          .at("modes");
  ASSERT_EQ(modes.size(), 4U);
  // The planner's sum of model states, transients and activations is a bound.
  plan::Request request;
  request.model = plan::model_of(nn::preset("tiny"), "tiny");
  request.policy = plan::fp32();
  request.sequence = 8;
  for (const plan::Stage stage : plan::kStages) {
    const auto m = static_cast<std::size_t>(stage);
    const plan::StagePlan planned = plan::plan_stage(request, stage, plan::data_mesh(stage, 4));
    EXPECT_LE(modes[m].at("peak_mib").get<double>(), mib(planned.total())) << m;
    for (const char* peak : {"peak_mib", "peak_states_mib"}) {
      if (m > 0) {
        EXPECT_LT(modes[m].at(peak), modes[m - 1].at(peak)) << m;
      }
    }
  }
}

}  // namespace
}  // namespace zero::ladder

// What the ladder measures: peaks, and bytes and bits in 2-byte types.

#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>
#include <tools/models/presets.hpp>
#include <tools/plan/planner.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::figures_of;
using testing::kQuick;
using testing::TestFolder;

// tests/peak_test.cpp has the bounds of each stage.
TEST(Peaks, FallFromStageToStageAndStayWithinThePlanners) {
  const TestFolder folder;
  const json modes = figures_of(folder,
                                "--model tiny --steps 2 --seq-len 8 --nproc 4 --timeout 30 "
                                "--no-compute-alone --modes ddp,zero1,zero2,zero3")
                         .at("modes");
  ASSERT_EQ(modes.size(), 4U);
  // The planner's sum of model states, transients and activations is a bound.
  plan::Request request;
  request.model = plan::model_of(tools::preset("tiny"), "tiny");
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

// Master weights and moments are twelve bytes of optimizer. tests/matrix has the bits of every mode
// in both types of 2 bytes.
TEST(LadderMixedPrecision, EveryModeHasTheBitsOfDdpAndTheBytesOfItsFormula) {
  const TestFolder folder;
  const json report =
      figures_of(folder, kQuick + "--modes ddp,zero2,zero3,tensor_zero3 --dtype bf16");
  EXPECT_EQ(report.at("dtype"), "bf16");
  EXPECT_EQ(report.at("parameter_bytes"), 2 * report.at("parameters").get<std::int64_t>());
  for (const json& row : report.at("modes")) {
    EXPECT_EQ(row.at("identical_to_ddp"), true) << row.at("mode");
    EXPECT_LT(std::abs(row.at("formula_difference").get<double>()), 1e-3) << row.at("mode");
  }
}

}  // namespace
}  // namespace zero::ladder

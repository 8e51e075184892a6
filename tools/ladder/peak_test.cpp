// The peaks in the ladder's figures: each stage's is lower than that of the one before, and within
// the bounds of docs/memory.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <tests/support/ladder_program.hpp>
#include <tools/plan/planner.hpp>
#include <zero/base/json.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

// MiB of the parameters that no inner unit holds, and of the largest unit within.
std::pair<double, double> root_and_unit_of_tiny() {
  const nn::DeferredStorage deferred;
  const auto model = std::make_shared<nn::Llama>(nn::preset("tiny"));
  const nn::ParameterList list = nn::list_parameters(*model);
  std::vector<double> units(list.units.size(), 0);
  for (const nn::Parameter& p : list.parameters) {
    units[p.unit] += static_cast<double>(p.bytes()) / (1 << 20);
  }
  return {units.front(), *std::max_element(units.begin() + 1, units.end())};
}

// By how much a rank's peak of model states is above what it holds at rest, where that is most.
double most_above_rest(const ladder::ModeRow& mode) {
  double most = 0;
  for (const ladder::RankRow& rank : mode.ranks) {
    most = std::max(most, rank.peak_states_mib - *rank.formula_mib);
  }
  return most;
}

TEST(Peaks, FallFromStageToStageAndStayWithinTheirBounds) {
  const TestFolder folder;
  const ProcessResult ended =
      run_ladder(folder,
                 "--model tiny --steps 2 --seq-len 8 --nproc 4 --timeout 30 "
                 "--no-compute-alone --modes ddp,zero1,zero2,zero3");
  ASSERT_EQ(ended.code, 0) << ended.said;
  ladder::LadderReport report;
  const base::Json json = base::read_json(folder / "out.json");
  for (const base::Json& mode : json.at("modes")) report.modes.push_back(mode_from_json(mode));
  ASSERT_EQ(report.modes.size(), 4U);
  for (const auto peak : {&ladder::RankRow::peak_mib, &ladder::RankRow::peak_states_mib}) {
    for (std::size_t m = 1; m < report.modes.size(); ++m) {
      EXPECT_LT(ladder::spread(report.modes[m], peak).mean,
                ladder::spread(report.modes[m - 1], peak).mean)
          << report.modes[m].mode;
    }
  }
  const auto [root, unit] = root_and_unit_of_tiny();
  constexpr double kByte = 1.0 / (1 << 20);
  EXPECT_LE(most_above_rest(report.modes[0]), kByte);
  EXPECT_LE(most_above_rest(report.modes[1]), kByte);
  // Gradients on their way to their owners; under zero3 gathered parameters as well.
  EXPECT_LE(most_above_rest(report.modes[2]), root + unit + kByte);
  EXPECT_LE(most_above_rest(report.modes[3]), 2 * (root + unit) + kByte);
  // The planner's sum of model states, transients and activations is a bound.
  plan::Request request;
  request.model = plan::model_of(nn::preset("tiny"), "tiny");
  request.policy = plan::fp32();
  request.sequence = 8;
  for (const plan::Stage stage : plan::kStages) {
    const plan::StagePlan planned = plan::plan_stage(request, stage, false, 4, 0);
    const ladder::ModeRow& mode = report.modes[static_cast<std::size_t>(stage)];
    EXPECT_LE(ladder::spread(mode, &ladder::RankRow::peak_mib).mean, mib(planned.total()))
        << mode.mode;
  }
}

}  // namespace
}  // namespace zero::ladder

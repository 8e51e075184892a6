#include "pipeline_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>

namespace zero {

using Kind = PipelineAction::Kind;

std::string_view name(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::kGPipe ? "gpipe" : "1f1b";
}

std::string text(const PipelineAction& action) {
  return fmt::format("{}{}", action.kind == Kind::kForward ? 'F' : 'B', action.micro_batch);
}

StageActions stage_actions(PipelineSchedule schedule, int stage, int stages, int micro_batches) {
  if (stages < 1 || micro_batches < 1 || stage < 0 || stage >= stages) {
    throw Error(
        fmt::format("stage {} of {} stages with {} micro-batches: there must be at least "
                    "one of each, and stages count from 0",
                    stage, stages, micro_batches));
  }
  constexpr int kNone = PipelineAction::kNone;
  const int last = stages - 1;
  const int before = stage > 0 ? stage - 1 : kNone;
  const int after = stage < last ? stage + 1 : kNone;

  StageActions actions;
  const auto forward = [&](int m) { actions.push_back({Kind::kForward, m, before, after}); };
  const auto backward = [&](int m) { actions.push_back({Kind::kBackward, m, after, before}); };

  const int ahead = schedule == PipelineSchedule::kGPipe ? micro_batches : last - stage;
  const int first_forwards = std::min(ahead, micro_batches);
  for (int m = 0; m < first_forwards; ++m) forward(m);
  for (int m = 0; m < micro_batches; ++m) {
    if (m + first_forwards < micro_batches) forward(m + first_forwards);
    backward(m);
  }
  return actions;
}

}  // namespace zero

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// In which order a stage of a pipeline runs forward and backward of its micro-batches.
enum class PipelineSchedule : std::uint8_t {
  /// All forwards, then all backwards (Huang et al. 2019): a stage holds the activations of all
  /// micro-batches.
  kGPipe,
  /// One forward, one backward (Narayanan et al. 2021, section 2.2): stage s of p begins with
  /// p - s - 1 forwards and then runs forward and backward in turn, so it holds the activations of
  /// at most p - s micro-batches. It takes as long as GPipe.
  kOneForwardOneBackward,
};
/// "gpipe", "1f1b".
std::string_view name(PipelineSchedule schedule);

/// What a stage does next. It first waits for the message that it needs, if any, then computes, and
/// then sends the result, if another stage needs it.
struct PipelineAction {
  enum class Kind : std::uint8_t {
    kForward,   ///< receives activations, sends activations
    kBackward,  ///< receives the gradient of what forward has sent, sends that of its input
  };
  static constexpr int kNone = -1;

  Kind kind;
  int micro_batch;
  int receive_from = kNone;  ///< a stage
  int send_to = kNone;

  bool operator==(const PipelineAction&) const = default;
};
/// "F0", "B0".
std::string text(const PipelineAction& action);

/// The actions of one stage, in order.
using StageActions = std::vector<PipelineAction>;

/// The actions of stage `stage` of `stages` in a step of `micro_batches`. Every stage runs forward
/// of micro-batches 0, 1, … in this order, and backward as well, so that gradients are added in the
/// same order as without a pipeline. Throws zero::Error for numbers below 1 or a stage that does
/// not exist.
StageActions stage_actions(PipelineSchedule schedule, int stage, int stages, int micro_batches);

}  // namespace zero

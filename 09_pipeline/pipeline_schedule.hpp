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
/// The same for all stages.
std::vector<StageActions> all_actions(PipelineSchedule schedule, int stages, int micro_batches);

/// An action and when it runs, in slots: [begin, end).
struct TimedAction {
  PipelineAction action;
  int begin;
  int end;
};

/// Runs the actions of all stages on a clock: each begins when its stage is free and its message
/// has been sent. Messages take no time. Throws zero::Error that names the
/// actions if stages wait for each other, or if a stage receives the messages of another stage in
/// another order than they were sent in, or not all.
std::vector<std::vector<TimedAction>> in_time(const std::vector<StageActions>& stages,
                                              int forward_slots = 1, int backward_slots = 1);

/// The part of the time in which stages do nothing: (p - 1) / (m + p - 1) for p stages and m
/// micro-batches, with both schedules (Narayanan et al. 2021, section 2.2.1, as part of the whole).
double bubble_fraction(const std::vector<std::vector<TimedAction>>& timed);

/// The largest number of micro-batches between their forward and their backward on a stage.
int most_in_flight(const StageActions& actions);

/// A table: a row for each stage, a column for each time slot, "F0" and "B0" in it.
std::string text(const std::vector<std::vector<TimedAction>>& timed);

}  // namespace zero

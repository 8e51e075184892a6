#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <09_pipeline/pipeline_schedule.hpp>
#include <zero/base/error.hpp>

/// The schedules of a pipeline on a clock.
namespace zero::testing {

/// stage_actions() of all stages.
inline std::vector<StageActions> all_actions(PipelineSchedule schedule, int stages,
                                             int micro_batches) {
  std::vector<StageActions> all;
  for (int s = 0; s < std::max(stages, 1); ++s) {
    all.push_back(stage_actions(schedule, s, stages, micro_batches));
  }
  return all;
}

/// The largest number of micro-batches between their forward and their backward on a stage.
inline int most_in_flight(const StageActions& actions) {
  int now = 0;
  int most = 0;
  for (const PipelineAction& action : actions) {
    if (action.kind == PipelineAction::Kind::kForward) most = std::max(most, ++now);
    if (action.kind == PipelineAction::Kind::kBackward) --now;
  }
  return most;
}

/// An action and when it runs, in slots: [begin, end).
struct TimedAction {
  PipelineAction action;
  int begin;
  int end;
};

// A message that one stage has sent to another and that has not been received.
struct Message {
  PipelineAction::Kind for_kind;
  int micro_batch;
  int sent;  // slot
};
using Messages = std::map<std::pair<int, int>, std::deque<Message>>;

// Takes the message that `action` needs. Returns the slot in which it was sent, if it was sent.
inline std::optional<int> arrival(Messages& messages, int stage, const PipelineAction& action) {
  if (action.receive_from == PipelineAction::kNone) return 0;
  std::deque<Message>& queue = messages[{action.receive_from, stage}];
  if (queue.empty()) return std::nullopt;
  const Message& first = queue.front();
  if (first.for_kind != action.kind || first.micro_batch != action.micro_batch) {
    throw Error(fmt::format("stage {} receives for {} from stage {}, whose next message is for {}",
                            stage, text(action), action.receive_from,
                            text(PipelineAction{first.for_kind, first.micro_batch})));
  }
  const int sent = first.sent;
  queue.pop_front();
  return sent;
}

inline std::string waiting_stages(const std::vector<StageActions>& stages,
                                  const std::vector<std::vector<TimedAction>>& timed) {
  std::string text_of_all;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::size_t next = timed[s].size();
    if (next == stages[s].size()) continue;
    text_of_all += fmt::format("; stage {} in {} for stage {}", s, text(stages[s][next]),
                               stages[s][next].receive_from);
  }
  return text_of_all;
}

/// Runs the actions of all stages on a clock: each begins when its stage is free and its message
/// has been sent. Messages take no time. Throws zero::Error that names the
/// actions if stages wait for each other, or if a stage receives the messages of another stage in
/// another order than they were sent in, or not all.
inline std::vector<std::vector<TimedAction>> in_time(const std::vector<StageActions>& stages,
                                                     int forward_slots = 1,
                                                     int backward_slots = 1) {
  std::vector<std::vector<TimedAction>> timed(stages.size());
  Messages messages;
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const int stage = static_cast<int>(s);
      while (timed[s].size() < stages[s].size()) {
        const PipelineAction& action = stages[s][timed[s].size()];
        const std::optional<int> arrived = arrival(messages, stage, action);
        if (!arrived) break;
        const int slots =
            action.kind == PipelineAction::Kind::kForward ? forward_slots : backward_slots;
        const int begin = std::max(timed[s].empty() ? 0 : timed[s].back().end, *arrived);
        timed[s].push_back({action, begin, begin + slots});
        if (action.send_to != PipelineAction::kNone) {
          messages[{stage, action.send_to}].push_back(
              {action.kind, action.micro_batch, begin + slots});
        }
        progress = true;
      }
    }
  }
  if (const std::string waiting = waiting_stages(stages, timed); !waiting.empty()) {
    throw Error(fmt::format("the stages of this schedule wait for each other{}", waiting));
  }
  for (const auto& [pair, queue] : messages) {
    if (queue.empty()) continue;
    throw Error(
        fmt::format("stage {} never receives what stage {} sends for {}", pair.second, pair.first,
                    text(PipelineAction{queue.front().for_kind, queue.front().micro_batch})));
  }
  return timed;
}

inline int slots_of(const std::vector<std::vector<TimedAction>>& timed) {
  int slots = 0;
  for (const auto& stage : timed) slots = std::max(slots, stage.empty() ? 0 : stage.back().end);
  return slots;
}

/// The part of the time in which stages do nothing: (p - 1) / (m + p - 1) for p stages and m
/// micro-batches, with both schedules (Narayanan et al. 2021, section 2.2.1, as part of the whole).
inline double bubble_fraction(const std::vector<std::vector<TimedAction>>& timed) {
  int busy = 0;
  for (const auto& stage : timed) {
    for (const TimedAction& a : stage) busy += a.end - a.begin;
  }
  const int all = slots_of(timed) * static_cast<int>(timed.size());
  return static_cast<double>(all - busy) / static_cast<double>(all);
}

/// A table: a row for each stage, a column for each time slot, "F0" and "B0" in it.
inline std::string text(const std::vector<std::vector<TimedAction>>& timed) {
  const int slots = slots_of(timed);
  std::string table = "slot    ";
  for (int t = 0; t < slots; ++t) table += fmt::format(" {:>3}", t);
  for (std::size_t s = 0; s < timed.size(); ++s) {
    std::vector<std::string> cells(static_cast<std::size_t>(slots), ".");
    for (const TimedAction& a : timed[s]) {
      for (int t = a.begin; t < a.end; ++t) cells[static_cast<std::size_t>(t)] = text(a.action);
    }
    table += fmt::format("\nstage {:<2}", s);
    for (const std::string& cell : cells) table += fmt::format(" {:>3}", cell);
  }
  return table + "\n";
}

}  // namespace zero::testing

#include "pipeline_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

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

std::vector<StageActions> all_actions(PipelineSchedule schedule, int stages, int micro_batches) {
  std::vector<StageActions> all;
  for (int s = 0; s < std::max(stages, 1); ++s) {
    all.push_back(stage_actions(schedule, s, stages, micro_batches));
  }
  return all;
}

namespace {

// A message that one stage has sent to another and that has not been received.
struct Message {
  Kind for_kind;
  int micro_batch;
  int sent;  // slot
};
using Messages = std::map<std::pair<int, int>, std::deque<Message>>;

// Takes the message that `action` needs. Returns the slot in which it was sent, if it was sent.
std::optional<int> arrival(Messages& messages, int stage, const PipelineAction& action) {
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

std::string waiting_stages(const std::vector<StageActions>& stages,
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

}  // namespace

std::vector<std::vector<TimedAction>> in_time(const std::vector<StageActions>& stages,
                                              int forward_slots, int backward_slots) {
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
        const int slots = action.kind == Kind::kForward ? forward_slots : backward_slots;
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

namespace {

int slots_of(const std::vector<std::vector<TimedAction>>& timed) {
  int slots = 0;
  for (const auto& stage : timed) slots = std::max(slots, stage.empty() ? 0 : stage.back().end);
  return slots;
}

}  // namespace

double bubble_fraction(const std::vector<std::vector<TimedAction>>& timed) {
  int busy = 0;
  for (const auto& stage : timed) {
    for (const TimedAction& a : stage) busy += a.end - a.begin;
  }
  const int all = slots_of(timed) * static_cast<int>(timed.size());
  return static_cast<double>(all - busy) / static_cast<double>(all);
}

int most_in_flight(const StageActions& actions) {
  int now = 0;
  int most = 0;
  for (const PipelineAction& action : actions) {
    if (action.kind == Kind::kForward) most = std::max(most, ++now);
    if (action.kind == Kind::kBackward) --now;
  }
  return most;
}

std::string text(const std::vector<std::vector<TimedAction>>& timed) {
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

}  // namespace zero

// Checks each stage's list by itself, and then runs all of them on a clock.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "09a.hpp"

namespace exercise_09a {

using zero::exercise::Mistake;
using Lists = std::vector<std::vector<Action>>;  // by stage

constexpr int kForwardSlots = 1, kBackwardSlots = 2;

struct Pipeline {
  int stages, micro_batches;
};
constexpr Pipeline kPipelines[] = {{4, 8}, {2, 4}, {1, 3}, {3, 3}, {4, 2}, {5, 1}, {8, 17}};

std::string text(const Action& action) {
  return fmt::format("{} of micro-batch {}", action.kind == Kind::kForward ? "forward" : "backward",
                     action.micro_batch);
}

// What one stage may not do, whatever the others do. `begin` names the stage.
void check_list(const std::vector<Action>& actions, int micro_batches, const std::string& begin) {
  int next[2] = {0, 0};  // micro-batch of the next forward and backward
  for (const Action& action : actions) {
    const bool is_backward = action.kind == Kind::kBackward;
    int& expected = next[is_backward ? 1 : 0];
    if (action.micro_batch < 0 || action.micro_batch >= micro_batches) {
      throw Mistake(
          fmt::format("{}{} is on the list: there are {}", begin, text(action), micro_batches));
    }
    if (action.micro_batch < expected) {
      throw Mistake(
          fmt::format("{}{} is on the list twice, or after a later one", begin, text(action)));
    }
    if (action.micro_batch > expected) {
      throw Mistake(
          fmt::format("{}{} comes before that of micro-batch {}: both passes take them in the "
                      "order 0, 1, …, so "
                      "that gradients are added in one order",
                      begin, text(action), expected));
    }
    if (is_backward && action.micro_batch >= next[0]) {
      throw Mistake(begin + text(action) + " comes before its forward");
    }
    ++expected;
  }
  for (const Kind kind : {Kind::kForward, Kind::kBackward}) {
    const int done = next[kind == Kind::kForward ? 0 : 1];
    if (done < micro_batches) throw Mistake(begin + text({kind, done}) + " is missing");
  }
}

// The slots that a step takes. Throws if stages wait for each other.
int slots(const Lists& lists, int micro_batches, const std::string& begin) {
  const int stages = static_cast<int>(lists.size());
  // When an action ended, by stage and micro-batch; -1: not yet.
  std::vector<std::vector<int>> ended[2];
  for (auto& times : ended) times.assign(lists.size(), std::vector<int>(micro_batches, -1));
  std::vector<std::size_t> done(lists.size());
  std::vector<int> free(lists.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      if (done[stage] == lists[stage].size()) continue;
      const auto [kind, micro_batch] = lists[stage][done[stage]];
      const bool is_backward = kind == Kind::kBackward;
      const int sender = stage + (is_backward ? 1 : -1);
      const bool waits = 0 <= sender && sender < stages;
      const int arrives = waits ? ended[is_backward ? 1 : 0][sender][micro_batch] : 0;
      if (arrives < 0) continue;
      free[stage] = std::max(free[stage], arrives) + (is_backward ? kBackwardSlots : kForwardSlots);
      ended[is_backward ? 1 : 0][stage][micro_batch] = free[stage];
      ++done[stage];
      moved = true;
    }
  }
  std::string waiting;
  for (int stage = 0; stage < stages; ++stage) {
    if (done[stage] == lists[stage].size()) continue;
    waiting += fmt::format("{} stage {} with {}", waiting.empty() ? "" : ",", stage,
                           text(lists[stage][done[stage]]));
  }
  if (!waiting.empty()) {
    throw Mistake(begin + "the stages wait for each other forever:" + waiting);
  }
  return *std::max_element(free.begin(), free.end());
}

// Micro-batches that had their forward and not yet their backward, at most.
int most_in_flight(const std::vector<Action>& actions) {
  int now = 0, most = 0;
  for (const Action& action : actions) {
    now += action.kind == Kind::kForward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

void check_in_flight(const Lists& lists, int micro_batches, const std::string& begin) {
  const int stages = static_cast<int>(lists.size());
  for (int stage = 0; stage < stages; ++stage) {
    const int most = most_in_flight(lists[stage]), limit = std::min(stages - stage, micro_batches);
    if (most <= limit) continue;
    const std::string cause = most == micro_batches ? "all forwards run before the first backward"
                              : most == limit + 1   ? "one forward too many runs before backward"
                                                    : "a backward that may run waits for forwards";
    throw Mistake(
        fmt::format("{}stage {} holds the activations of {} micro-batches, and {} are enough: {}",
                    begin, stage, most, limit, cause));
  }
}

void check(const Answer& answer) {
  for (const auto& [stages, micro_batches] : kPipelines) {
    const std::string begin =
        fmt::format("with {} stages and {} micro-batches ", stages, micro_batches);
    Lists lists;
    for (int stage = 0; stage < stages; ++stage) {
      lists.push_back(answer.actions(stage, stages, micro_batches));
      check_list(lists.back(), micro_batches, begin + fmt::format("at stage {} ", stage));
    }
    const int taken = slots(lists, micro_batches, begin);
    check_in_flight(lists, micro_batches, begin);
    const int enough = (micro_batches + stages - 1) * (kForwardSlots + kBackwardSlots);
    if (taken > enough) {
      throw Mistake(fmt::format(
          "{}a step takes {} slots, and {} are enough: a stage waits for a backward when it could "
          "run one more forward",
          begin, taken, enough));
    }
  }
}

}  // namespace exercise_09a

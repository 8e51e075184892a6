#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "judge.hpp"
#include "small_formulas.hpp"

namespace zero::exercise {
namespace {

using memory::Category;
using std::optional;
using std::string;

// A stage and what it did.
struct Stage {
  int stages, stage;
  const RankLog& log;

  int first() const { return first_layer(stages, stage); }
  int end() const { return first_layer(stages, stage + 1); }
  bool has_layers() const { return first() < end(); }
};

// ---- the weights ----

optional<string> judge_weights(const Stage& at, int step, const References& references) {
  for (int layer = at.first(); layer < at.end(); ++layer) {
    const auto equals = [&](const Run& reference) {
      return forward_of(at.log, step, layer)->digest ==
             forward_of(reference[0], step, layer)->digest;
    };
    if (equals(references.ddp)) continue;
    if (step == 1) {
      return fmt::format("the first weight of layer {} is not that of chapter 00", layer);
    }
    const string begin = fmt::format(
        "in step {} the weight of layer {} is not that of one process with the whole model", step,
        layer);
    if (equals(references.ddp_with_sums())) {
      return begin + ": the gradients of the micro-batches are summed, not averaged";
    }
    if (equals(references.ddp_with_last())) {
      return begin + ": only the last micro-batch's gradient is in it; they must be added up";
    }
    return begin;
  }
  return std::nullopt;
}

// ---- the order ----

// Forward or backward of a micro-batch.
struct Pass {
  bool is_forward;
  int micro_batch;  // -1: of none
  bool operator==(const Pass&) const = default;
};

string text(const Pass& pass) {
  return fmt::format("{} of micro-batch {}", pass.is_forward ? "forward" : "backward",
                     pass.micro_batch);
}

// What a stage did in a step. The inputs of its first layer tell micro-batches apart: they are
// those of the rank of that number under DDP.
std::vector<Pass> passes_of(const Stage& at, int step, const Run& ddp) {
  std::map<std::uint64_t, int> micro_batches;
  for (int m = 0; m < kMicroBatches; ++m) {
    micro_batches[forward_of(ddp[static_cast<std::size_t>(m)], step, at.first())->input] = m;
  }
  std::vector<Pass> passes;
  for (const Event& e : at.log.events) {
    const bool computes = e.kind == Event::Kind::kForward || e.kind == Event::Kind::kBackward;
    if (!computes || e.step != step || e.layer != at.first() || e.input == 0) continue;
    const auto found = micro_batches.find(e.input);
    passes.push_back(
        {e.kind == Event::Kind::kForward, found == micro_batches.end() ? -1 : found->second});
  }
  return passes;
}

// Both passes must take every micro-batch once, in the order of their numbers.
optional<string> judge_numbers(const std::vector<Pass>& passes) {
  int next[2] = {0, 0};  // micro-batch of the next backward and forward
  for (const Pass& pass : passes) {
    int& expected = next[pass.is_forward ? 1 : 0];
    if (pass.micro_batch < 0) {
      return fmt::format("the {} where that of micro-batch {} should be has other inputs",
                         pass.is_forward ? "forward" : "backward", expected);
    }
    if (pass.micro_batch < expected) {
      return text(pass) + " runs twice, or after a later one";
    }
    if (pass.micro_batch > expected) {
      return fmt::format(
          "{} comes before that of micro-batch {}: both passes take them in the order 0, 1, …, so "
          "that gradients are added in one order",
          text(pass), expected);
    }
    ++expected;
  }
  for (const bool is_forward : {true, false}) {
    const Pass missing = {is_forward, next[is_forward ? 1 : 0]};
    if (missing.micro_batch < kMicroBatches) return text(missing) + " is missing";
  }
  return std::nullopt;
}

// Micro-batches that had their forward and not yet their backward, at most.
int most_in_flight(const std::vector<Pass>& passes) {
  int now = 0, most = 0;
  for (const Pass& pass : passes) {
    now += pass.is_forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

std::vector<Pass> one_forward_one_backward(int ahead) {
  std::vector<Pass> passes;
  for (int m = 0; m < kMicroBatches + ahead; ++m) {
    if (m < kMicroBatches) passes.push_back({true, m});
    if (m >= ahead) passes.push_back({false, m - ahead});
  }
  return passes;
}

optional<string> judge_passes(const Stage& at, const std::vector<Pass>& passes) {
  if (auto wrong = judge_numbers(passes)) return wrong;
  const int most = most_in_flight(passes);
  const int enough = micro_batches_in_flight(/*gpipe=*/false, at.stages, at.stage);
  if (most > enough) {
    return fmt::format("{} micro-batches are in flight, and {} are enough: {}", most, enough,
                       most == kMicroBatches ? "all forwards run before the first backward"
                       : most == enough + 1  ? "one forward too many runs before backward"
                                             : "a backward that may run waits for forwards");
  }
  if (most < enough) {
    return fmt::format(
        "at most {} of {} possible micro-batches are in flight: the stage waits for a backward "
        "when it could run one more forward",
        most, enough);
  }
  const std::vector<Pass> right = one_forward_one_backward(at.stages - 1 - at.stage);
  const auto [mine, other] = std::mismatch(passes.begin(), passes.end(), right.begin());
  if (mine == passes.end()) return std::nullopt;
  return fmt::format("{} comes before {}: run one forward and one backward in turn", text(*mine),
                     text(*other));
}

// ---- bytes ----

string explain_activations(const Stage& at, std::int64_t difference) {
  return fmt::format("at the peak rank {} holds {}: {}", at.stage,
                     too_many(difference, "activations"),
                     difference < 0 ? "are all counted(…, kActivations)?"
                                    : "a send keeps its tensor until it is waited for; wait when "
                                      "the answer has come");
}

optional<string> judge_bytes(const Stage& at, const StepBytes& step) {
  const Expected e = expected(9, at.stages, at.stage);
  struct Figure {
    const char* what;
    const char* when;
    std::int64_t difference;
  };
  const Figure figures[] = {
      {"parameters", "at the end of a step", step.held_as(Category::kParameters) - e.parameters},
      {"gradients", "at the end of a step", step.held_as(Category::kGradients) - e.gradients},
      {"optimizer states", "at the end of a step",
       step.held_as(Category::kOptimizer) - e.optimizer},
      {"gradients", "at the peak", step.peak_as(Category::kGradients) - e.gradients_peak}};
  for (const auto& [what, when, difference] : figures) {
    if (difference == 0) continue;
    return fmt::format("{} rank {} holds {}", when, at.stage, too_many(difference, what));
  }
  if (const auto more = step.peak_as(Category::kActivations) - e.activations_peak; more != 0) {
    return explain_activations(at, more);
  }
  for (std::size_t p = 0; p < dist::kPurposes; ++p) {
    const auto purpose = static_cast<dist::Purpose>(p);
    const auto right = purpose == dist::Purpose::kActivation ? e.activations_sent : 0;
    if (step.sent_as(purpose) == right) continue;
    return fmt::format(
        "rank {} sends {} in a step", at.stage,
        too_many(step.sent_as(purpose) - right, purpose == dist::Purpose::kActivation
                                                    ? "activations and their gradients"
                                                    : "something else"));
  }
  return std::nullopt;
}

optional<string> judge_step(const Stage& at, int step, const References& references) {
  if (auto wrong = judge_weights(at, step, references)) return wrong;
  if (at.has_layers()) {
    if (const auto wrong = judge_passes(at, passes_of(at, step, references.ddp))) {
      return fmt::format("on rank {}: {}", at.stage, *wrong);
    }
  }
  return judge_bytes(at, at.log.steps[static_cast<std::size_t>(step) - 1]);
}

}  // namespace

optional<string> judge_pipeline(const Run& run, const References& references) {
  std::vector<Stage> stages;
  for (const RankLog& log : run) {
    stages.push_back({static_cast<int>(run.size()), static_cast<int>(stages.size()), log});
    const Stage& at = stages.back();
    if (auto wrong = judge_completeness(log, at.stage, at.first(), at.end())) return wrong;
  }
  for (int step = 1; step <= kSteps; ++step) {
    for (const Stage& stage : stages) {
      if (auto wrong = judge_step(stage, step, references)) return wrong;
    }
  }
  for (const RankLog& log : run) {
    if (log.digest != references.ddp[0].digest) {
      return "after the last step the weights are not those of one process with the whole model";
    }
  }
  return std::nullopt;
}

}  // namespace zero::exercise

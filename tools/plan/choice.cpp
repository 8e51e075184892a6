// Which stage to take, in words. A no stays a no: whole bytes are compared, needs are printed
// rounded up and memory rounded down.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/table.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

// 9.7500 of "GB": as many decimals as it takes to tell the need from what there is.
struct Words {
  const Request& request;
  Unit unit = request.memory->unit;

  std::string need(std::int64_t bytes) const { return at_least(bytes, unit); }
  std::string memory() const { return at_most(request.memory->bytes, unit); }
  std::string ranks(std::int64_t n) const {
    return fmt::format("{} rank{}", base::with_thousands(n), n == 1 ? "" : "s");
  }
};

std::string parts(const Words& words, const StagePlan& plan) {
  return fmt::format("{} of model states, {} of transients and {} of activations",
                     words.need(plan.states.total()), words.need(plan.transients),
                     words.need(plan.activations));
}

const char* why(Stage stage) {
  switch (stage) {
    case Stage::kDdp:
      return "Nothing has to be sharded.";
    case Stage::kZero1:
      return "It sends what DDP sends, so this costs nothing on the wire; half of it, the updated "
             "parameters, travels while the next forward computes (defer_parameter_gather).";
    case Stage::kZero2:
      return "It sends what DDP sends, so this costs nothing on the wire; gradients have to leave "
             "as backward makes them, and updated parameters travel while the next forward "
             "computes (defer_parameter_gather).";
    case Stage::kZero3:
      return "It sends up to half as much again as DDP, because parameters are gathered twice: "
             "worth it only where they do not fit whole.";
  }
  return "";
}

// "0.3 % more time and 1.34 GiB less memory": what `other` costs beside `plan`.
std::string beside(const StagePlan& other, const StagePlan& plan, Unit unit) {
  const double longer = other.time.total() / plan.time.total() - 1;
  const std::int64_t more = other.total() - plan.total();
  const std::string time = std::abs(longer) < 5e-4
                               ? "equal time"
                               : fmt::format("{} % {} time", base::fixed(100 * std::abs(longer), 1),
                                             longer < 0 ? "less" : "more");
  return fmt::format("{} and {} {} memory", time, at_most(std::abs(more), unit),
                     more < 0 ? "less" : "more");
}

// Takes the lowest that is as quick as the quickest out of `plans`, which are in order of stages.
std::optional<StagePlan> take_best(std::vector<StagePlan>& plans) {
  if (plans.empty()) return std::nullopt;
  const auto seconds = [](const StagePlan& plan) { return plan.time.total(); };
  const double quickest = seconds(*std::ranges::min_element(plans, {}, seconds));
  const auto best = std::ranges::find_if(
      plans, [&](const StagePlan& plan) { return seconds(plan) <= (1 + kAsQuick) * quickest; });
  const StagePlan taken = *best;
  plans.erase(best);
  return taken;
}

Choice yes(const Words& words, const std::vector<StagePlan>& stages,
           std::vector<StagePlan> fitting) {
  const StagePlan plan = *take_best(fitting);
  Choice choice;
  choice.stage = plan.stage;
  choice.says = fmt::format("Take {}: {} needed, {} there. A step takes {}, of which {} exposed.",
                            name(plan.stage), words.need(plan.total()), words.memory(),
                            in_seconds(plan.time.total()), in_seconds(plan.time.exposed));
  choice.reasons = {parts(words, plan) + ".", why(plan.stage)};
  for (const StagePlan& lower : stages) {
    if (lower.stage >= plan.stage) continue;
    choice.reasons.push_back(*lower.fits ? fmt::format("{} fits too, with {}.", name(lower.stage),
                                                       beside(lower, plan, words.unit))
                                         : fmt::format("{} does not fit: {}.", name(lower.stage),
                                                       words.need(lower.total())));
  }
  if (plan.activations > plan.states.total()) {
    choice.reasons.push_back(
        "Activations dominate: a smaller --batch or --recompute frees more than any sharding.");
  }
  if (words.request.stage) return choice;
  if (const std::optional<StagePlan> next = take_best(fitting)) {
    choice.next = next->stage;
    choice.reasons.push_back(
        fmt::format("Next best: {}, with {}.", name(next->stage), beside(*next, plan, words.unit)));
  } else {
    choice.reasons.push_back("No other stage fits.");
  }
  return choice;
}

void say_from_how_many(const Words& words, Stage stage, Choice& choice) {
  const Request& request = words.request;
  const std::int64_t memory = request.memory->bytes;
  const auto states = [&](std::int64_t n) {
    return model_states(request.model.parameters, request.policy, stage, n).total();
  };
  const auto all = [&](std::int64_t n) {
    return plan_stage(request, stage, /*offloaded=*/false, n, /*lookahead=*/0).total();
  };
  choice.ranks_for_states = fewest_ranks(memory, request.world_size, states);
  choice.ranks_for_all = fewest_ranks(memory, request.world_size + 1, all);
  if (!choice.ranks_for_states) {
    choice.reasons.push_back(fmt::format(
        "With no number of ranks: {} of model states are on every rank whatever their number.",
        words.need(states_at_limit(request.model.parameters, request.policy, stage).total())));
    return;
  }
  const std::int64_t n = *choice.ranks_for_states;
  choice.reasons.push_back(fmt::format("Model states alone fit under {} from {} on ({}).",
                                       name(stage), words.ranks(n), words.need(states(n))));
  if (choice.ranks_for_all) {
    const std::int64_t m = *choice.ranks_for_all;
    choice.reasons.push_back(fmt::format("With transients and activations: from {} on ({}).",
                                         words.ranks(m), words.need(all(m))));
  } else {
    choice.reasons.push_back(fmt::format(
        "With transients and activations: with no number of ranks, they alone need {}. A smaller "
        "--batch or --sequence, or --recompute, makes activations smaller.",
        words.need(all(kLargestWorldSize) - states(kLargestWorldSize))));
  }
}

Choice no(const Words& words, const std::vector<StagePlan>& stages) {
  Choice choice;
  const StagePlan* last = nullptr;
  const StagePlan* offloaded = nullptr;
  for (const StagePlan& plan : stages) (plan.offloaded ? offloaded : last) = &plan;
  choice.says = words.request.stage
                    ? fmt::format("{} does not fit {} on {}.", name(last->stage), words.memory(),
                                  words.ranks(words.request.world_size))
                    : fmt::format("No stage fits {} on {}.", words.memory(),
                                  words.ranks(words.request.world_size));
  choice.reasons.push_back(
      fmt::format("{}{} needs {}: {}.", words.request.stage ? "" : "The last of them, ",
                  name(last->stage), words.need(last->total()), parts(words, *last)));
  say_from_how_many(words, last->stage, choice);
  if (offloaded != nullptr) {
    choice.reasons.push_back(
        fmt::format("With the optimizer in host memory ZeRO-3 keeps {} of model states on the "
                    "device, {} in all: that {}.",
                    words.need(offloaded->states.total()), words.need(offloaded->total()),
                    *offloaded->fits ? "fits (its time in host memory is not predicted)"
                                     : "does not fit either"));
  }
  return choice;
}

}  // namespace

Choice choose(const Request& request, const std::vector<StagePlan>& stages) {
  if (!request.memory) return {};
  const Words words{request};
  std::vector<StagePlan> fitting;
  for (const StagePlan& plan : stages) {
    if (!plan.offloaded && *plan.fits) fitting.push_back(plan);
  }
  return fitting.empty() ? no(words, stages) : yes(words, stages, std::move(fitting));
}

}  // namespace zero::plan

// Which stage to take, in words. A no stays a no: whole bytes are compared, needs are printed
// rounded up and memory rounded down.

#include <fmt/format.h>

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
      return "It sends what DDP sends, so this costs nothing on the wire.";
    case Stage::kZero2:
      return "It sends what DDP sends, so this costs nothing on the wire; gradients have to leave "
             "as backward makes them.";
    case Stage::kZero3:
      return "It sends up to half as much again as DDP, because parameters are gathered twice: "
             "worth it only where they do not fit whole.";
  }
  return "";
}

// What the stages that send no more would free.
void add_free_savings(const Words& words, Stage taken, const std::vector<StagePlan>& stages,
                      std::vector<std::string>& reasons) {
  std::int64_t total = 0;
  for (const StagePlan& plan : stages) {
    if (plan.stage == taken && !plan.offloaded) total = plan.total();
  }
  for (const StagePlan& plan : stages) {
    if (plan.offloaded || plan.stage <= taken || plan.stage == Stage::kZero3) continue;
    if (plan.total() >= total) continue;
    reasons.push_back(fmt::format(
        "{} would free another {} and send not a byte more{}.", name(plan.stage),
        at_most(total - plan.total(), words.unit),
        plan.stage == Stage::kZero2 ? ", where gradients can leave as backward makes them" : ""));
  }
}

Choice yes(const Words& words, const StagePlan& plan, const std::vector<StagePlan>& stages) {
  Choice choice;
  choice.stage = plan.stage;
  choice.says = fmt::format(
      "Take {}: {} needed, {} there.{}", name(plan.stage), words.need(plan.total()), words.memory(),
      words.request.stage || plan.stage == Stage::kDdp ? "" : " No lower stage fits.");
  choice.reasons.push_back(parts(words, plan) + ".");
  choice.reasons.push_back(why(plan.stage));
  if (plan.activations > plan.states.total()) {
    choice.reasons.push_back(
        "Activations dominate: a smaller --batch or --recompute frees more than any sharding.");
  }
  add_free_savings(words, plan.stage, stages, choice.reasons);
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
  for (const StagePlan& plan : stages) {
    if (!plan.offloaded && *plan.fits) return yes(words, plan, stages);
  }
  return no(words, stages);
}

}  // namespace zero::plan

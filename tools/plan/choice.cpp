// Which stage to take, in words. A no stays a no: whole bytes are compared, needs are printed
// rounded up and memory rounded down.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <zero/base/table.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

std::string ranks(std::int64_t n) {
  return fmt::format("{} rank{}", base::with_thousands(n), n == 1 ? "" : "s");
}

std::string parts(const StagePlan& plan, Unit unit) {
  return fmt::format("{} of model states, {} of transients and {} of activations",
                     at_least(plan.states.total(), unit), at_least(plan.transients, unit),
                     at_least(plan.activations, unit));
}

constexpr const char* kShards =
    "It sends what DDP sends, so this costs nothing on the wire; updated parameters travel while "
    "the next forward computes (defer_parameter_gather).";
constexpr const char* kWhy[] = {
    "Nothing has to be sharded.", kShards, kShards,
    "It sends up to half as much again as DDP: worth it only if parameters do not fit whole."};

// "0.3 % more time and 1.34 GiB less memory": the price of `other` beside `plan`.
std::string beside(const StagePlan& other, const StagePlan& plan, Unit unit) {
  const double longer = 100 * (other.time.total() / plan.time.total() - 1);
  const std::int64_t more = other.total() - plan.total();
  return fmt::format(
      "{} time and {} {} memory",
      std::abs(longer) < 0.05
          ? "equal"
          : fmt::format("{} % {}", base::fixed(std::abs(longer), 1), longer < 0 ? "less" : "more"),
      at_most(std::abs(more), unit), more < 0 ? "less" : "more");
}

// Takes the lowest that is as quick as the quickest out of `plans`, which are in order of stages.
std::optional<StagePlan> take_best(std::vector<StagePlan>& plans) {
  if (plans.empty()) return std::nullopt;
  const auto seconds = [](const StagePlan& plan) { return plan.time.total(); };
  const double quickest = std::ranges::min(plans, {}, seconds).time.total();
  const auto best = std::ranges::find_if(
      plans, [&](const StagePlan& plan) { return seconds(plan) <= (1 + kAsQuick) * quickest; });
  const StagePlan taken = *best;
  plans.erase(best);
  return taken;
}

Choice yes(const Request& request, const std::vector<StagePlan>& stages,
           std::vector<StagePlan> fitting) {
  const Unit unit = request.memory->unit;
  const StagePlan plan = *take_best(fitting);
  Choice choice{.stage = plan.stage};
  choice.says = fmt::format("Take {}: {} needed, {} there. A step takes {}, of which {} exposed.",
                            name(plan.stage), at_least(plan.total(), unit),
                            at_most(request.memory->bytes, unit), in_seconds(plan.time.total()),
                            in_seconds(plan.time.exposed));
  const auto because = [&]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
    choice.reasons.push_back(fmt::format(text, std::forward<Args>(args)...));
  };
  because("{}.", parts(plan, unit));
  because("{}", kWhy[static_cast<int>(plan.stage)]);
  for (const StagePlan& lower : stages) {
    if (lower.stage >= plan.stage) continue;
    if (*lower.fits) because("{} fits too, with {}.", name(lower.stage), beside(lower, plan, unit));
    if (!*lower.fits) {
      because("{} does not fit: {}.", name(lower.stage), at_least(lower.total(), unit));
    }
  }
  if (plan.activations > plan.states.total()) {
    because("Activations dominate: a smaller --batch or --recompute frees more than any sharding.");
  }
  if (request.stage) return choice;
  const std::optional<StagePlan> next = take_best(fitting);
  if (!next) because("No other stage fits.");
  if (next) because("Next best: {}, with {}.", name(next->stage), beside(*next, plan, unit));
  if (next) choice.next = next->stage;
  return choice;
}

Choice no(const Request& request, const std::vector<StagePlan>& stages) {
  const auto& [memory, unit] = *request.memory;
  const bool offloads = stages.back().offloaded;
  const StagePlan& last = *(stages.end() - (offloads ? 2 : 1));
  const auto need = [&](std::int64_t bytes) { return at_least(bytes, unit); };
  const auto states = [&](std::int64_t n) {
    return model_states(request.model.parameters, request.policy, last.stage, n).total();
  };
  const auto all = [&](std::int64_t n) {
    return plan_stage(request, last.stage, /*offloaded=*/false, n, /*lookahead=*/0).total();
  };
  Choice choice;
  choice.ranks_for_states = fewest_ranks(memory, request.world_size, states);
  choice.ranks_for_all = fewest_ranks(memory, request.world_size + 1, all);
  choice.says =
      fmt::format("{} {} on {}.",
                  request.stage ? name(last.stage) + std::string(" does not fit") : "No stage fits",
                  at_most(memory, unit), ranks(request.world_size));
  choice.reasons = {
      fmt::format("{} needs {}: {}.", name(last.stage), need(last.total()), parts(last, unit))};
  const auto from = [&](const char* what, std::optional<std::int64_t> n, const auto& needed) {
    choice.reasons.push_back(n ? fmt::format("{} under {} from {} on ({}).", what, name(last.stage),
                                             ranks(*n), need(needed(*n)))
                               : fmt::format("{} with no number of ranks: {} are needed on {}.",
                                             what, need(needed(kLargestWorldSize)),
                                             ranks(kLargestWorldSize)));
  };
  from("Model states alone fit", choice.ranks_for_states, states);
  from("With transients and activations it fits", choice.ranks_for_all, all);
  if (offloads) {
    choice.reasons.push_back(
        fmt::format("With the optimizer in host memory ZeRO-3 keeps {} of model states on the "
                    "device, {} in all: that {}.",
                    need(stages.back().states.total()), need(stages.back().total()),
                    *stages.back().fits ? "fits (its time in host memory is not predicted)"
                                        : "does not fit either"));
  }
  return choice;
}

}  // namespace

Choice choose(const Request& request, const std::vector<StagePlan>& stages) {
  if (!request.memory) return {};
  std::vector<StagePlan> fitting;
  for (const StagePlan& plan : stages) {
    if (!plan.offloaded && *plan.fits) fitting.push_back(plan);
  }
  return fitting.empty() ? no(request, stages) : yes(request, stages, std::move(fitting));
}

}  // namespace zero::plan

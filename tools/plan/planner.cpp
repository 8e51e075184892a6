#include "planner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

void check_positive(double value, const char* what) {
  if (!(value > 0)) throw Error(fmt::format("{} must be above 0", what));
}

void check_range(std::int64_t value, std::int64_t most, const char* what) {
  if (value >= 1 && value <= most) return;
  throw Error(fmt::format("{} is {}, but must be from 1 to {}", what, value, most));
}

void check_request(const Request& request) {
  check_range(request.model.parameters, nn::kMostParameters, "the number of parameters");
  check_range(request.world_size, kLargestWorldSize, "the world size");
  check_range(request.batch, kLargestBatch, "the batch");
  check_range(request.sequence, kLongestSequence, "the sequence");
  if (request.tokens() > kMostTokens) {
    throw Error(fmt::format(
        "{} samples of {} tokens are {} tokens a rank, but at most {} are planned for: a smaller "
        "--batch or --sequence is needed",
        request.batch, request.sequence, request.tokens(), kMostTokens));
  }
  check_positive(request.machine.bandwidth, "the bandwidth");
  check_positive(request.machine.flops, "the speed");
  check_positive(request.break_even_share, "the share of communication");
}

// Of `elements` gathered or gradients of them, what a rank does not own anyway.
std::int64_t missing(std::int64_t elements, std::int64_t world_size) {
  return elements - elements / world_size;
}

std::int64_t transients(const Request& request, Stage stage, std::int64_t world_size) {
  if (world_size == 1) return 0;
  const Model& model = request.model;
  const std::int64_t elements = missing(model.root + model.largest_unit(), world_size);
  std::int64_t bytes = kReductionScratch;
  if (stage >= Stage::kZero2) bytes += elements * request.policy.gradient;
  if (stage >= Stage::kZero3) bytes += elements * request.policy.parameter;
  return bytes;
}

double kept_share(const Model& model) {
  return static_cast<double>(model.root) / static_cast<double>(model.parameters);
}

LookaheadPlan plan_lookahead(const Request& request, const StagePlan& zero3) {
  LookaheadPlan plan;
  std::vector<double> gathers;
  std::vector<double> computes;
  for (const std::int64_t unit : request.model.units) {
    gathers.push_back(
        unit_gather_seconds(unit, request.policy, request.world_size, request.machine));
    computes.push_back(unit_forward_seconds(unit, request.tokens(), request.machine));
  }
  const std::size_t largest =
      static_cast<std::size_t>(std::max_element(gathers.begin(), gathers.end()) - gathers.begin());
  plan.gather = gathers[largest];
  plan.compute = computes[largest];
  plan.needed = lookahead(gathers, computes);
  const std::int64_t unit = request.model.largest_unit() * request.policy.parameter;
  if (zero3.fits.value_or(false)) {
    plan.room = (request.memory->bytes - zero3.total()) / unit;
  }
  plan.used = plan.needed.value_or(1);
  if (plan.room && *plan.room < plan.used) plan.used = *plan.room;

  if (!plan.needed) {
    plan.says = "no lookahead hides that";
  } else if (plan.room && *plan.room < *plan.needed) {
    plan.says =
        fmt::format("k* = {}, but there is room for {} units ahead", *plan.needed, *plan.room);
  } else {
    plan.says = fmt::format("k* = {}", *plan.needed);
  }
  if (plan.needed.value_or(0) > 1) {
    plan.says +=
        "; one link carries one gather at a time, so what gathers take longer than "
        "computing stays exposed with any k";
  }
  return plan;
}

}  // namespace

StagePlan plan_stage(const Request& request, Stage stage, bool offloaded, std::int64_t world_size,
                     std::int64_t lookahead) {
  StagePlan plan;
  plan.stage = stage;
  plan.offloaded = offloaded;
  plan.states = model_states(request.model.parameters, request.policy, stage, world_size);
  if (offloaded) plan.states = with_offloaded_optimizer(plan.states);
  plan.transients = transients(request, stage, world_size);
  plan.activations = activation_bytes(request.model.shape, request.tokens(),
                                      request.policy.parameter, request.recompute);
  const Copies one = copies(request.model.parameters, request.policy);
  plan.sent = sent(scheme_of(stage), one, world_size, kept_share(request.model));
  plan.sent_in_copies = plan.sent.total() / one.parameters;
  plan.time =
      step_time(request.model, request.policy, scheme_of(stage), world_size, request.tokens(),
                lookahead, request.recompute == Recompute::kLayers, request.machine);
  plan.break_even_batch =
      break_even_batch(plan.time.communication, request.model.parameters, request.sequence,
                       request.break_even_share, request.machine);
  if (request.memory) plan.fits = plan.total() <= request.memory->bytes;
  return plan;
}

Plan make_plan(const Request& request) {
  check_request(request);
  Plan plan;
  plan.request = request;
  const StagePlan zero3 =
      plan_stage(request, Stage::kZero3, /*offloaded=*/false, request.world_size, /*lookahead=*/0);
  plan.lookahead = plan_lookahead(request, zero3);
  for (const Stage stage : kStages) {
    if (request.stage && *request.stage != stage) continue;
    plan.stages.push_back(
        plan_stage(request, stage, /*offloaded=*/false, request.world_size, plan.lookahead.used));
  }
  if (request.policy.optimizer > 0 && request.stage.value_or(Stage::kZero3) == Stage::kZero3) {
    plan.stages.push_back(plan_stage(request, Stage::kZero3, /*offloaded=*/true, request.world_size,
                                     plan.lookahead.used));
  }
  plan.hybrid = hybrid(request.model, request.policy, request.world_size, request.hybrid_threshold);
  plan.crossover_tokens = tensor_parallel_crossover(request.model.largest_unit(),
                                                    request.model.shape.hidden, request.policy);
  plan.choice = choose(request, plan.stages);
  return plan;
}

Unit Plan::unit() const {
  if (request.unit) return *request.unit;
  if (request.memory) return request.memory->unit;
  return model_states(request.model.parameters, request.policy, Stage::kDdp, 1).total() < 10 * kGB
             ? Unit::kMiB
             : Unit::kGB;
}

}  // namespace zero::plan

#include "planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

void check_request(const Request& request) {
  if (request.tokens() > kMostTokens) {
    throw Error(fmt::format(
        "{} samples of {} tokens are {} tokens a rank, but at most {} are planned for: a smaller "
        "--batch or --sequence is needed",
        request.batch, request.sequence, request.tokens(), kMostTokens));
  }
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
        transfer_seconds(unit * request.policy.parameter, request.world_size, request.machine));
    computes.push_back(unit_forward_seconds(unit, request.tokens(), request.machine));
  }
  plan.gather = *std::max_element(gathers.begin(), gathers.end());
  plan.compute = *std::max_element(computes.begin(), computes.end());
  plan.needed = lookahead(gathers, computes);
  const std::int64_t unit = request.model.largest_unit() * request.policy.parameter;
  if (zero3.fits.value_or(false)) {
    plan.room = (request.memory->bytes - zero3.total()) / unit;
  }
  plan.used = std::min(plan.needed, plan.room.value_or(plan.needed));
  plan.says = fmt::format("k* = {}", plan.needed);
  if (plan.used < plan.needed) {
    plan.says += fmt::format(", but there is room for {} units ahead", plan.used);
  }
  if (sum(gathers) > sum(computes)) {
    plan.says +=
        "; one link carries one gather at a time, so what gathers take longer than "
        "computing stays exposed with any k";
  }
  return plan;
}

}  // namespace

Hybrid hybrid(std::int64_t large, std::int64_t small, const Policy& policy,
              std::int64_t world_size) {
  Hybrid result;
  result.large = large;
  result.small = small;
  const States of_large = model_states(large, policy, Stage::kZero3, world_size);
  const States of_small = model_states(small, policy, Stage::kZero2, world_size);
  result.states = {of_large.parameters + of_small.parameters,
                   of_large.gradients + of_small.gradients,
                   of_large.optimizer + of_small.optimizer};
  result.sent = sent(Scheme::kZero3, copies(large, policy), world_size).total() +
                sent(Scheme::kZero2, copies(small, policy), world_size).total();
  return result;
}

Hybrid hybrid(const Model& model, const Policy& policy, std::int64_t world_size,
              std::int64_t threshold) {
  std::int64_t large = 0;
  for (const std::int64_t unit : model.units) large += unit >= threshold ? unit : 0;
  const std::int64_t root = model.root >= threshold ? model.root : 0;
  Hybrid result = hybrid(large + root, model.parameters - large - root, policy, world_size);
  // The root stays whole from forward to backward, so it is gathered once.
  const Copies copy = copies(root, policy);
  result.sent -= sent(Scheme::kZero3, copy, world_size).total() -
                 sent(Scheme::kZero3Kept, copy, world_size).total();
  return result;
}

double tensor_parallel_sent(std::int64_t tokens, std::int64_t hidden, std::int64_t element_bytes,
                            std::int64_t world_size) {
  constexpr double kAllReduces = 4;
  constexpr double kHalves = 2;
  return kAllReduces * kHalves * static_cast<double>(tokens) *
         static_cast<double>(hidden * element_bytes) * redundant_share(world_size);
}

std::int64_t tensor_parallel_crossover(std::int64_t layer_elements, std::int64_t hidden,
                                       const Policy& policy) {
  constexpr std::int64_t kTwoRanks = 2;  // any number: the factor (N-1)/N is on both sides
  const double a_token = tensor_parallel_sent(1, hidden, policy.parameter, kTwoRanks);
  if (!(a_token > 0)) throw Error("tensor parallelism needs layers with a hidden size");
  const double layer = sent(Scheme::kZero3, copies(layer_elements, policy), kTwoRanks).total();
  return static_cast<std::int64_t>(std::floor(layer / a_token)) + 1;
}

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
  plan.time = step_time(request.model, request.policy, stage, world_size, request.tokens(),
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
  if (request.hosts.ranks_per_host) {
    plan.hosts = plan_hosts(request);
  } else if (request.mesh != MeshRequest{}) {
    plan.meshes = plan_meshes(request);
  }
  return plan;
}

bool Plan::feasible() const {
  if (!request.memory) return true;
  if (meshes.empty()) return choice.stage.has_value();
  return std::ranges::any_of(meshes, [](const MeshPlan& mesh) { return *mesh.fits; });
}

Unit Plan::unit() const {
  if (request.memory) return request.memory->unit;
  return model_states(request.model.parameters, request.policy, Stage::kDdp, 1).total() < 10 * kGB
             ? Unit::kMiB
             : Unit::kGB;
}

}  // namespace zero::plan

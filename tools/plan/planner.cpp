#include "planner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

std::int64_t transients(const Request& request, Stage stage, std::int64_t world_size) {
  if (world_size == 1) return 0;
  const std::int64_t elements = request.model.root + request.model.largest_unit();
  const std::int64_t missing = elements - elements / world_size;  // the rank owns the rest
  std::int64_t bytes = kReductionScratch;
  if (stage >= Stage::kZero2) bytes += missing * request.policy.gradient;
  if (stage >= Stage::kZero3) bytes += missing * request.policy.parameter;
  return bytes;
}

LookaheadPlan plan_lookahead(const Request& request) {
  std::vector<double> gathers, computes;
  for (const std::int64_t unit : request.model.units) {
    gathers.push_back(
        transfer_seconds(unit * request.policy.parameter, request.world_size, request.machine));
    computes.push_back(forward_seconds(unit, request.tokens(), request.machine));
  }
  LookaheadPlan plan;
  plan.gather = *std::ranges::max_element(gathers);
  plan.compute = *std::ranges::max_element(computes);
  plan.needed = lookahead(gathers, computes);
  plan.always_waits = sum(gathers) > sum(computes);
  const StagePlan zero3 =
      plan_stage(request, Stage::kZero3, /*offloaded=*/false, request.world_size, /*lookahead=*/0);
  if (zero3.fits.value_or(false)) {
    plan.room = (request.memory->bytes - zero3.total()) /
                (request.model.largest_unit() * request.policy.parameter);
  }
  plan.used = std::min(plan.needed, plan.room.value_or(plan.needed));
  return plan;
}

}  // namespace

StagePlan plan_stage(const Request& request, Stage stage, bool offloaded, std::int64_t world_size,
                     std::int64_t lookahead) {
  const Model& model = request.model;
  StagePlan plan;
  plan.stage = stage;
  plan.offloaded = offloaded;
  plan.states = model_states(model.parameters, request.policy, stage, world_size);
  if (offloaded) plan.states.optimizer = 0;
  plan.transients = transients(request, stage, world_size);
  plan.activations =
      activation_bytes(model.shape, request.tokens(), request.policy.parameter, request.recompute);
  plan.sent = sent(scheme_of(stage), copies(model.parameters, request.policy), world_size,
                   static_cast<double>(model.root) / static_cast<double>(model.parameters));
  plan.time = step_time(model, request.policy, stage, world_size, request.tokens(), lookahead,
                        request.recompute, request.machine);
  plan.break_even_batch =
      break_even_batch(plan.time.communication, model.parameters, request.sequence,
                       request.break_even_share, request.machine);
  if (request.memory) plan.fits = plan.total() <= request.memory->bytes;
  return plan;
}

Plan make_plan(const Request& request) {
  if (request.tokens() > kMostTokens) {
    throw Error(fmt::format(
        "{} samples of {} tokens are {} tokens a rank, but at most {} are planned for: a smaller "
        "--batch or --sequence is needed",
        request.batch, request.sequence, request.tokens(), kMostTokens));
  }
  Plan plan{.request = request, .lookahead = plan_lookahead(request)};
  const auto add = [&](Stage stage, bool offloaded) {
    if (request.stage.value_or(stage) != stage) return;
    plan.stages.push_back(
        plan_stage(request, stage, offloaded, request.world_size, plan.lookahead.used));
  };
  for (const Stage stage : kStages) add(stage, /*offloaded=*/false);
  if (request.policy.optimizer > 0) add(Stage::kZero3, /*offloaded=*/true);
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
  return request.model.parameters * request.policy.total() < 10 * kGB ? Unit::kMiB : Unit::kGB;
}

}  // namespace zero::plan

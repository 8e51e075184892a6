#include <nlohmann/json.hpp>
#include <set>

#include "planner.hpp"

namespace zero::plan {
namespace {

using base::Json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json states_json(const States& states) {
  return {{"parameter_bytes", states.parameters},
          {"gradient_bytes", states.gradients},
          {"optimizer_bytes", states.optimizer},
          {"total_bytes", states.total()}};
}

Json stage_json(const StagePlan& s) {
  return {{"stage", name(s.stage)},
          {"offloaded_optimizer", s.offloaded},
          {"model_states", states_json(s.states)},
          {"transient_bytes", s.transients},
          {"activation_bytes", s.activations},
          {"total_bytes", s.total()},
          {"fits", or_null(s.fits)},
          {"sent_bytes", s.sent.total()},
          {"sent_in_v", s.sent_in_copies},
          {"compute_seconds", s.time.compute},
          {"communication_seconds", s.time.communication},
          {"exposed_seconds", s.time.exposed},
          {"step_seconds", s.time.total()},
          {"break_even_batch", or_null(s.break_even_batch)}};
}

Json mesh_json(const MeshPlan& m) {
  return {{"mesh",
           {{"replicas", m.mesh.replicas},
            {"shards", m.mesh.shards},
            {"tensor", m.mesh.tensor},
            {"pipeline", m.mesh.pipeline}}},
          {"stage", name(m.stage)},
          {"micro_batches", m.micro_batches},
          {"fullest_pipeline_stage", m.fullest},
          {"model_states", states_json(m.states)},
          {"transient_bytes", m.transients},
          {"activation_bytes", m.activations},
          {"total_bytes", m.total()},
          {"fits", or_null(m.fits)},
          {"sent_bytes",
           {{"shards", m.sent.shards},
            {"replicas", m.sent.replicas},
            {"tensor", m.sent.tensor},
            {"pipeline", m.sent.pipeline},
            {"total", m.sent.total()}}},
          {"bubble", m.bubble}};
}

Json host_json(const HostPlan& h) {
  return {{"name", h.name},
          {"model_states", states_json(h.states)},
          {"sent_inside_bytes", h.inside()},
          {"sent_between_bytes", h.between()},
          {"leaves_a_host_bytes", {{"ring", h.leaves_by_ring}, {"direct", h.leaves_directly}}},
          {"communication_seconds", h.seconds},
          {"pays_from_ratio", or_null(h.pays_from)}};
}

Json hybrid_parts(const std::vector<HybridPart>& parts) {
  Json rows = Json::array();
  for (const HybridPart& part : parts) {
    rows.push_back({{"name", part.name},
                    {"count", part.count},
                    {"parameters", part.parameters},
                    {"stage", name(part.stage)},
                    {"model_states", states_json(part.states)},
                    {"sent_bytes", part.sent}});
  }
  return rows;
}

Json point(const std::string& what, double sent, const States& states) {
  return {{"name", what}, {"sent_bytes", sent}, {"model_state_bytes", states.total()}};
}

// Memory against communication at one world size, from whatever costs nothing in memory to whatever
// costs nothing on the wire.
Json curve_at(const Request& r, std::int64_t world_size) {
  const Copies one = copies(r.model.parameters, r.policy);
  Json points = Json::array();
  for (const Stage stage : kStages) {
    points.push_back(point(name(stage), sent(scheme_of(stage), one, world_size).total(),
                           model_states(r.model.parameters, r.policy, stage, world_size)));
  }
  return {{"world_size", world_size}, {"points", points}};
}

Json beside_the_curve(const Plan& plan) {
  const Request& r = plan.request;
  const Copies one = copies(r.model.parameters, r.policy);
  const auto states = [&](Stage stage) {
    return model_states(r.model.parameters, r.policy, stage, r.world_size);
  };
  const auto total = [&](Scheme scheme) { return sent(scheme, one, r.world_size).total(); };
  Json points = Json::array();
  points.push_back(point("ZeRO-1 naive", total(Scheme::kZero1Naive), states(Stage::kZero1)));
  if (plan.hybrid.large > 0 && plan.hybrid.small > 0) {
    points.push_back(point("hybrid", plan.hybrid.sent, plan.hybrid.states));
  }
  if (r.policy.optimizer > 0) {
    points.push_back(point("ZeRO-3 + offload", total(Scheme::kZero3),
                           with_offloaded_optimizer(states(Stage::kZero3))));
  }
  return points;
}

Json hybrid_json(const Plan& plan) {
  const Request& r = plan.request;
  Json json = {{"large_parameters", plan.hybrid.large},
               {"small_parameters", plan.hybrid.small},
               {"model_states", states_json(plan.hybrid.states)},
               {"sent_bytes", plan.hybrid.sent}};
  if (r.hybrid_report) {
    const HybridReport report = hybrid_report(r.model, r.policy, r.world_size, r.hybrid_threshold);
    json["modules"] = hybrid_parts(report.modules);
    json["units"] = hybrid_parts(report.units);
  }
  return json;
}

}  // namespace

Json to_json(const Plan& plan) {
  const Request& r = plan.request;
  Json json = {{"model", r.model.name},
               {"parameters", r.model.parameters},
               {"policy",
                {{"name", r.policy.name},
                 {"parameter_bytes", r.policy.parameter},
                 {"gradient_bytes", r.policy.gradient},
                 {"optimizer_bytes", r.policy.optimizer}}},
               {"world_size", r.world_size},
               {"batch", r.batch},
               {"sequence", r.sequence},
               {"memory_bytes", r.memory ? Json(r.memory->bytes) : Json()},
               {"bandwidth_bytes_per_second", r.machine.bandwidth},
               {"latency_seconds", r.machine.latency},
               {"operations_per_second", r.machine.flops},
               {"notes", r.model.notes}};
  for (const StagePlan& stage : plan.stages) json["stages"].push_back(stage_json(stage));
  for (const MeshPlan& mesh : plan.meshes) json["meshes"].push_back(mesh_json(mesh));
  for (const HostPlan& host : plan.hosts) json["hosts"].push_back(host_json(host));
  json["lookahead"] = {{"gather_seconds", plan.lookahead.gather},
                       {"compute_seconds", plan.lookahead.compute},
                       {"needed", plan.lookahead.needed},
                       {"room", or_null(plan.lookahead.room)},
                       {"used", plan.lookahead.used}};
  json["redundant_share_of_ddp"] = redundant_share(r.world_size);
  json["hybrid"] = hybrid_json(plan);
  json["tensor_parallel_crossover_tokens"] = plan.crossover_tokens;
  json["choice"] = {{"stage", plan.choice.stage ? Json(name(*plan.choice.stage)) : Json()},
                    {"next", plan.choice.next ? Json(name(*plan.choice.next)) : Json()},
                    {"says", plan.choice.says},
                    {"reasons", plan.choice.reasons},
                    {"ranks_for_model_states", or_null(plan.choice.ranks_for_states)},
                    {"ranks_for_all", or_null(plan.choice.ranks_for_all)}};
  std::set<std::int64_t> sizes = {2, 8, 64, r.world_size};
  for (const std::int64_t n : sizes) json["curves"].push_back(curve_at(r, n));
  json["beside"] = beside_the_curve(plan);
  return json;
}

}  // namespace zero::plan

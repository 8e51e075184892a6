#include "hybrid.hpp"

#include <map>

#include "traffic.hpp"

namespace zero::plan {
namespace {

States scaled(const States& states, std::int64_t count) {
  return {states.parameters * count, states.gradients * count, states.optimizer * count};
}

}  // namespace

HybridReport hybrid_report(const Model& model, const Policy& policy, std::int64_t world_size,
                           std::int64_t threshold) {
  const auto part = [&](std::string name, std::int64_t count, std::int64_t parameters,
                        Scheme large = Scheme::kZero3) {
    HybridPart p = {.name = std::move(name), .count = count, .parameters = parameters};
    p.stage = parameters >= threshold ? Stage::kZero3 : Stage::kZero2;
    p.states = scaled(model_states(parameters, policy, p.stage, world_size), count);
    const Scheme scheme = p.stage == Stage::kZero3 ? large : Scheme::kZero2;
    p.sent =
        sent(scheme, copies(parameters, policy), world_size).total() * static_cast<double>(count);
    return p;
  };
  HybridReport report;
  for (const Module& module : model.modules) {
    report.modules.push_back(part(module.name, module.count, module.parameters));
  }
  std::map<std::int64_t, std::int64_t> layers;  // how many have so many parameters
  for (const std::int64_t unit : model.units) ++layers[unit];
  for (const auto& [parameters, count] : layers) {
    report.units.push_back(part("layer", count, parameters));
  }
  if (model.root > 0) report.units.push_back(part("root", 1, model.root, Scheme::kZero3Kept));
  return report;
}

HybridPart total(const std::vector<HybridPart>& parts, std::optional<Stage> stage) {
  HybridPart sum = {.name = stage ? std::string(name(*stage)) : "all", .count = 0};
  for (const HybridPart& part : parts) {
    if (stage && part.stage != *stage) continue;
    sum.count += part.count;
    sum.parameters += part.count * part.parameters;
    sum.states = {sum.states.parameters + part.states.parameters,
                  sum.states.gradients + part.states.gradients,
                  sum.states.optimizer + part.states.optimizer};
    sum.sent += part.sent;
  }
  return sum;
}

}  // namespace zero::plan

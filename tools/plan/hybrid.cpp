#include "hybrid.hpp"

#include <algorithm>
#include <map>

namespace zero::plan {

std::vector<HybridPart> hybrid(const std::vector<Module>& modules, const Policy& policy,
                               std::int64_t world_size, std::int64_t threshold) {
  std::vector<HybridPart> parts;
  for (const Module& m : modules) {
    const Stage stage = m.parameters >= threshold ? Stage::kZero3 : Stage::kZero2;
    const Traffic traffic = sent(scheme_of(stage), copies(m.parameters, policy), world_size);
    parts.push_back({m, stage,
                     m.count * model_states(m.parameters, policy, stage, world_size).total(),
                     static_cast<double>(m.count) * traffic.total()});
  }
  return parts;
}

std::vector<HybridPart> hybrid_units(const Model& model, const Policy& policy,
                                     std::int64_t world_size, std::int64_t threshold) {
  std::map<std::int64_t, std::int64_t> layers;  // how many have so many parameters
  for (const std::int64_t unit : model.units) ++layers[unit];
  std::vector<Module> units;
  for (const auto& [parameters, count] : layers) units.push_back({"layer", count, parameters});
  if (model.root > 0) units.push_back({"root", 1, model.root});
  std::vector<HybridPart> parts = hybrid(units, policy, world_size, threshold);
  if (model.root >= std::max<std::int64_t>(1, threshold)) {
    parts.back().sent = sent(Scheme::kZero3Kept, copies(model.root, policy), world_size).total();
  }
  return parts;
}

HybridPart total(const std::vector<HybridPart>& parts, std::optional<Stage> stage) {
  HybridPart sum = {{stage ? name(*stage) : "all", 0, 0}};
  for (const HybridPart& part : parts) {
    if (part.stage != stage.value_or(part.stage)) continue;
    sum.count += part.count;
    sum.parameters += part.count * part.parameters;
    sum.states += part.states;
    sum.sent += part.sent;
  }
  return sum;
}

}  // namespace zero::plan

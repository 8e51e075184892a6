#include "hybrid.hpp"

#include <algorithm>
#include <map>

#include "traffic.hpp"

namespace zero::plan {
namespace {

// `times` as many bytes as `part` has are added.
void add(HybridPart& sum, const States& states, double sent, std::int64_t times) {
  sum.states.parameters += states.parameters * times;
  sum.states.gradients += states.gradients * times;
  sum.states.optimizer += states.optimizer * times;
  sum.sent += sent * static_cast<double>(times);
}

}  // namespace

std::vector<HybridPart> hybrid(const std::vector<Module>& modules, const Policy& policy,
                               std::int64_t world_size, std::int64_t threshold) {
  std::vector<HybridPart> parts;
  for (const auto& [name, count, parameters] : modules) {
    const Stage stage = parameters >= threshold ? Stage::kZero3 : Stage::kZero2;
    HybridPart& part = parts.emplace_back(HybridPart{name, count, parameters, stage});
    add(part, model_states(parameters, policy, stage, world_size),
        sent(scheme_of(stage), copies(parameters, policy), world_size).total(), count);
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
  HybridPart sum = {.name = stage ? name(*stage) : "all"};
  for (const HybridPart& part : parts) {
    if (stage && part.stage != *stage) continue;
    sum.count += part.count;
    sum.parameters += part.count * part.parameters;
    add(sum, part.states, part.sent, 1);
  }
  return sum;
}

}  // namespace zero::plan

// The hybrid, module by module and unit by unit.
#include "hybrid.hpp"

#include <gmock/gmock.h>

#include <map>

#include <zero/nn/llama.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

constexpr std::int64_t kThreshold = 5'000'000;
constexpr std::int64_t kRanks = 8;

HybridPart named(const std::vector<HybridPart>& parts, const std::string& name) {
  for (const HybridPart& part : parts) {
    if (part.name == name) return part;
  }
  throw std::out_of_range(name);
}

const Model& smollm2() {
  static const Model model = model_of(nn::preset("smollm2-360m"), "");
  return model;
}

std::vector<HybridPart> modules() { return hybrid(smollm2().modules, mixed(), kRanks, kThreshold); }

std::vector<HybridPart> units(std::int64_t threshold = kThreshold) {
  return hybrid_units(smollm2(), mixed(), kRanks, threshold);
}

// A layer of SmolLM2-360M is large, none of its modules is.
TEST(Hybrid, DecidesByModuleAndByUnit) {
  EXPECT_EQ(named(modules(), "model.embed_tokens").stage, Stage::kZero3);
  const HybridPart up = named(modules(), "model.layers.*.mlp.up_proj");
  EXPECT_EQ(up.stage, Stage::kZero2);
  EXPECT_EQ(up.count, 32);
  EXPECT_EQ(up.parameters, 2560 * 960);
  const HybridPart layer = named(units(), "layer");
  EXPECT_EQ(layer.stage, Stage::kZero3);
  EXPECT_EQ(layer.count, 32);
  EXPECT_EQ(layer.parameters, 9'832'320);
  EXPECT_EQ(named(units(), "root").stage, Stage::kZero3);
  // At its own size a part is large, one parameter below it is not.
  EXPECT_EQ(named(units(layer.parameters), "layer").stage, Stage::kZero3);
  EXPECT_EQ(named(units(layer.parameters + 1), "layer").stage, Stage::kZero2);
}

// 16 bytes a parameter over 8 ranks under ZeRO-3, 2 + 14/8 under ZeRO-2; sent are 3 or 2 copies of
// 2 bytes times 7/8, of the root one gather less.
TEST(Hybrid, HasTheBytesOfEachStage) {
  const HybridPart layer = named(units(), "layer");
  constexpr std::int64_t kLayers = std::int64_t{32} * 9'832'320;
  EXPECT_EQ(layer.states, kLayers * 16 / kRanks);
  EXPECT_DOUBLE_EQ(layer.sent, kLayers * 2 * 3 * 7.0 / 8);
  const HybridPart up = named(modules(), "model.layers.*.mlp.up_proj");
  constexpr std::int64_t kUp = std::int64_t{32} * 2560 * 960;
  EXPECT_EQ(up.states, kUp * (2 * kRanks + 14) / kRanks);
  EXPECT_DOUBLE_EQ(up.sent, kUp * 2 * 2 * 7.0 / 8);
  constexpr double kRoot = 47'185'920 + 960;
  EXPECT_DOUBLE_EQ(named(units(), "root").sent, kRoot * 2 * 2 * 7 / 8);
  EXPECT_DOUBLE_EQ(named(modules(), "model.embed_tokens").sent, (kRoot - 960) * 2 * 3 * 7 / 8);
}

// P_large and P_small in 16 P_large/N + 2 P_small + 14 P_small/N and (6 P_large + 4 P_small)
// (N-1)/N.
TEST(Hybrid, AddsUpToTheFormula) {
  for (const auto& [threshold, large] : {std::pair{1, 361'821'120},
                                         {5'000'000, 361'821'120},
                                         {10'000'000, 47'186'880},
                                         {100'000'000, 0}}) {
    const double small = 361'821'120 - large, root = large > 0 ? 47'186'880 : 0;
    const std::vector<HybridPart> parts = units(threshold);
    EXPECT_EQ(total(parts, Stage::kZero3).parameters, large);
    EXPECT_EQ(total(parts, Stage::kZero2).parameters, small);
    EXPECT_EQ(total(parts).count, 33);
    EXPECT_EQ(total(parts).states, large * 2 + small * (2 + 14 / 8.0));
    EXPECT_NEAR(total(parts).sent, (6.0 * large + 4 * small - 2 * root) * 7 / 8, 1);
  }
  EXPECT_EQ(total(modules()).parameters, smollm2().parameters);
}

TEST(Hybrid, KnowsTheModulesOfARealModel) {
  for (const bool tied : {true, false}) {
    for (const std::int64_t classes : {0, 5}) {
      nn::LlamaConfig config = nn::preset("tiny");
      config.tied = tied;
      config.classes = classes;
      const nn::DeferredStorage deferred;
      const auto real = std::make_shared<nn::Llama>(config);
      std::map<std::string, std::pair<std::int64_t, std::int64_t>> expected, found;
      for (const auto& entry : real->named_parameters()) {
        std::string module = entry.key().substr(0, entry.key().rfind('.'));
        if (const auto layer = module.find("layers."); layer != std::string::npos) {
          module.replace(layer + 7, module.find('.', layer + 7) - layer - 7, "*");
        }
        auto& [count, elements] = expected[module];
        ++count;
        elements = entry.value().numel();
      }
      for (const Module& module : model_of(config, "").modules) {
        found[module.name] = {module.count, module.parameters};
      }
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(Hybrid, OfANumberHasUnitsAlone) {
  const Model model = model_of_size(7'000'000'000, 32);
  EXPECT_TRUE(model.modules.empty());
  const std::vector<HybridPart> parts = hybrid_units(model, mixed(), kRanks);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].count, 32);
  EXPECT_EQ(total(parts).parameters, 7'000'000'000);
}

}  // namespace
}  // namespace zero::plan

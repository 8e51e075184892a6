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

const HybridPart& named(const std::vector<HybridPart>& parts, const std::string& name) {
  for (const HybridPart& part : parts) {
    if (part.name == name) return part;
  }
  throw std::out_of_range(name);
}

HybridReport of_smollm2() {
  return hybrid_report(model_of(nn::preset("smollm2-360m"), ""), mixed(), kRanks, kThreshold);
}

// A layer of SmolLM2-360M is large, none of its modules is.
TEST(HybridReport, DecidesByModuleAndByUnit) {
  const HybridReport report = of_smollm2();
  EXPECT_EQ(named(report.modules, "model.embed_tokens").stage, Stage::kZero3);
  const HybridPart& up = named(report.modules, "model.layers.*.mlp.up_proj");
  EXPECT_EQ(up.stage, Stage::kZero2);
  EXPECT_EQ(up.count, 32);
  EXPECT_EQ(up.parameters, 2560 * 960);
  const HybridPart& layer = named(report.units, "layer");
  EXPECT_EQ(layer.stage, Stage::kZero3);
  EXPECT_EQ(layer.count, 32);
  EXPECT_EQ(layer.parameters, 9'832'320);
  EXPECT_EQ(named(report.units, "root").stage, Stage::kZero3);
  // At its own size a part is large, one parameter below it is not.
  for (const std::int64_t more : {0, 1}) {
    const HybridReport at = hybrid_report(model_of(nn::preset("smollm2-360m"), ""), mixed(), kRanks,
                                          layer.parameters + more);
    EXPECT_EQ(named(at.units, "layer").stage, more == 0 ? Stage::kZero3 : Stage::kZero2);
  }
}

// 16 bytes a parameter over 8 ranks under ZeRO-3, 2 + 14/8 under ZeRO-2; sent are 3 or 2 copies of
// 2 bytes times 7/8, of the root one gather less.
TEST(HybridReport, HasTheBytesOfEachStage) {
  const HybridReport report = of_smollm2();
  const HybridPart& layer = named(report.units, "layer");
  constexpr std::int64_t kLayers = std::int64_t{32} * 9'832'320;
  EXPECT_EQ(layer.states.total(), kLayers * 16 / kRanks);
  EXPECT_DOUBLE_EQ(layer.sent, kLayers * 2 * 3 * 7.0 / 8);
  const HybridPart& up = named(report.modules, "model.layers.*.mlp.up_proj");
  constexpr std::int64_t kUp = std::int64_t{32} * 2560 * 960;
  EXPECT_EQ(up.states.parameters, kUp * 2);
  EXPECT_EQ(up.states.total(), kUp * (2 * kRanks + 14) / kRanks);
  EXPECT_DOUBLE_EQ(up.sent, kUp * 2 * 2 * 7.0 / 8);
  constexpr double kRoot = 47'185'920 + 960;
  EXPECT_DOUBLE_EQ(named(report.units, "root").sent, kRoot * 2 * 2 * 7 / 8);
  EXPECT_DOUBLE_EQ(named(report.modules, "model.embed_tokens").sent, (kRoot - 960) * 2 * 3 * 7 / 8);
}

TEST(HybridReport, AddsUpToTheHybridOfThePlan) {
  for (const std::int64_t threshold :
       {std::int64_t{1}, kThreshold, std::int64_t{10'000'000}, std::int64_t{100'000'000}}) {
    const Model model = model_of(nn::preset("smollm2-360m"), "");
    const HybridReport report = hybrid_report(model, mixed(), kRanks, threshold);
    const Hybrid whole = hybrid(model, mixed(), kRanks, threshold);
    EXPECT_EQ(total(report.units, Stage::kZero3).parameters, whole.large) << threshold;
    EXPECT_EQ(total(report.units, Stage::kZero2).parameters, whole.small) << threshold;
    EXPECT_EQ(total(report.units).states, whole.states) << threshold;
    EXPECT_NEAR(total(report.units).sent, whole.sent, 1e-6 * whole.sent) << threshold;
    EXPECT_EQ(total(report.modules).parameters, model.parameters) << threshold;
    EXPECT_EQ(total(report.units).count, 33) << threshold;
  }
}

TEST(HybridReport, KnowsTheModulesOfARealModel) {
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

TEST(HybridReport, HasNoModulesOfANumber) {
  const HybridReport report =
      hybrid_report(model_of_size(7'000'000'000, 32), mixed(), kRanks, 100'000'000);
  EXPECT_TRUE(report.modules.empty());
  ASSERT_EQ(report.units.size(), 1U);
  EXPECT_EQ(report.units[0].count, 32);
  EXPECT_EQ(total(report.units).parameters, 7'000'000'000);
}

}  // namespace
}  // namespace zero::plan

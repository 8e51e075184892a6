#include "shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <zero/base/error.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/shard_layout.hpp>

#include "check.hpp"
#include "quantity.hpp"

namespace zero::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three layers of widths that no number of ranks divides.
nn::LlamaConfig odd(bool tied) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.layers = 3;
  config.mlp = 173;
  config.vocabulary = 257;
  config.tied = tied;
  return config;
}

// The same from the modules of the model instead of names and shapes.
SplitSizes of_modules(const nn::LlamaConfig& config, int ranks, nn::Granularity granularity) {
  const nn::DeferredStorage deferred;
  nn::Llama llama(config);
  const nn::ParameterList list = nn::list_parameters(llama, granularity);
  SplitSizes sizes;
  for (const nn::UnitInfo& unit : list.units) {
    if (unit.parameters.empty()) continue;
    std::vector<std::int64_t> elements;
    for (const std::size_t i : unit.parameters) elements.push_back(list.parameters[i].numel());
    const train::ShardLayout layout(elements, ranks);
    sizes.total += layout.total();
    if (!unit.name.starts_with("model.layers.")) sizes.root += layout.total();
    if (unit.name == "model.embed_tokens" && config.tied) sizes.used_twice = layout.total();
  }
  return sizes;
}

TEST(SplitSizes, AreThoseOfTheModules) {
  for (const bool tied : {true, false}) {
    const Model model = model_of(odd(tied), "odd");
    for (const int ranks : {1, 2, 3, 7, 16}) {
      const SplitSizes units = split_sizes(model, ranks, Grouping::kUnit);
      const SplitSizes expected = of_modules(odd(tied), ranks, nn::Granularity::kUnit);
      EXPECT_EQ(units.total, expected.total);
      EXPECT_EQ(units.root, expected.root);
      EXPECT_EQ(units.used_twice, 0);
      // Every layer of a Llama holds one parameter.
      const SplitSizes tensors = split_sizes(model, ranks, Grouping::kTensor);
      const SplitSizes leaves = of_modules(odd(tied), ranks, nn::Granularity::kLeaf);
      EXPECT_EQ(tensors.total, leaves.total);
      EXPECT_EQ(tensors.root, leaves.root);
      EXPECT_EQ(tensors.used_twice, leaves.used_twice);
      EXPECT_GE(tensors.total, units.total);
    }
  }
}

// A norm of 64 elements over 3 ranks: one rank has it, two have padding, which nobody keeps.
TEST(SplitSizes, GradientsThatArePaddingAreNotKept) {
  Model model;
  model.tensors = {{"norm", 64, 64}, {"model.layers.0.weight", 192, 3}};
  model.parameters = 256;
  const SplitSizes sizes = split_sizes(model, 3, Grouping::kTensor);
  EXPECT_EQ(sizes.total, 2 * 192);
  EXPECT_EQ(sizes.root, 192);
  EXPECT_EQ(sizes.gradients, 64 + 192);
}

TEST(SplitSizes, NeedTheSizesOfTensors) {
  EXPECT_THROW(split_sizes(model_of_size(1000, 1), 2, Grouping::kUnit), Error);
  EXPECT_THROW(split_sizes(model_of(odd(true), "odd"), 0, Grouping::kUnit), Error);
}

// What one rank of the chapter holds and sends under a mode, in elements.
struct Elements {
  std::int64_t parameters, gradients, sent;
};

ladder::LadderReport report_of(const std::vector<std::pair<std::string, Elements>>& modes,
                               const Model& model) {
  ladder::LadderReport report;
  report.world_size = 2;
  report.model = "odd";
  report.parameters = model.parameters;
  report.parameter_bytes = 4 * model.parameters;
  report.task = "text";
  report.dtype = "fp32";
  report.optimizer = "AdamW";
  report.batch_size = 1;
  report.sequence_length = 128;
  for (const auto& [mode, elements] : modes) {
    ladder::ModeRow row;
    row.mode = mode;
    for (int rank = 0; rank < 2; ++rank) {
      ladder::RankRow r;
      r.rank = rank;
      r.parameter_mib = 4.0 * static_cast<double>(elements.parameters) / kMiB;
      r.gradient_mib = 4.0 * static_cast<double>(elements.gradients) / kMiB;
      r.optimizer_mib = 4.0 * static_cast<double>(model.parameters) / kMiB;  // 2 of 4 P / 2
      r.sent_gradient_bytes = 4 * elements.sent;
      row.ranks.push_back(r);
    }
    report.modes.push_back(row);
  }
  return report;
}

TEST(CheckOfSplitTensors, EveryModeIsKnownToTheByte) {
  const Model model = model_of(odd(/*tied=*/true), "odd");
  const SplitSizes units = of_modules(odd(true), 2, nn::Granularity::kUnit);
  const SplitSizes leaves = of_modules(odd(true), 2, nn::Granularity::kLeaf);
  const std::int64_t f = units.total / 2, g = leaves.total / 2;  // shards
  const std::int64_t root = units.root / 2, leaf_root = leaves.root / 2;
  const ladder::LadderReport report =
      report_of({{"tensor_zero1", {2 * f, 2 * f, 2 * f}},
                 {"tensor_zero1:naive", {2 * f, 2 * f, 3 * f}},
                 {"tensor_zero1:per_parameter", {2 * g, 2 * g, 2 * g}},
                 {"tensor_zero2", {2 * f, f, 2 * f}},
                 {"tensor_zero2:per_parameter", {2 * g, g, 2 * g}},
                 {"tensor_zero3", {f, f, 3 * f - root}},
                 {"tensor_zero3:per_parameter", {g, g, 3 * g - leaf_root}},
                 {"tensor_zero3:leaf", {g, g, 3 * g + leaves.used_twice}},
                 {"tensor_zero3:whole", {f, f, 2 * f}}},
                model);
  Check check = check_against(report, model);
  EXPECT_THAT(check.failures, IsEmpty());
  ASSERT_EQ(check.modes.size(), 9U);
  for (const ModeCheck& mode : check.modes) {
    EXPECT_NEAR(mode.sent->error(), 0, 1e-12) << mode.mode;
    EXPECT_NEAR(mode.states.error(), 0, 1e-3) << mode.mode;
  }
  ladder::LadderReport wrong = report;
  wrong.modes[7].ranks[0].sent_gradient_bytes += 16;
  EXPECT_THAT(check_against(wrong, model).failures, ElementsAre(HasSubstr("tensor_zero3:leaf: ")));
}

TEST(CheckOfSplitTensors, WithoutSizesOfTensorsIsNotMade) {
  const Model model = model_of_size(100'000, 2);
  ladder::LadderReport report = report_of({{"tensor_zero2", {1, 1, 1}}}, model);
  const Check check = check_against(report, model);
  EXPECT_THAT(check.modes, IsEmpty());
  EXPECT_THAT(check.notes, ::testing::Contains(HasSubstr("tensor_zero2 is not compared")));
}

}  // namespace
}  // namespace zero::plan

// Parts of a model on a mesh; figures.csv has the figures of meshes.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "report.hpp"

namespace zero::plan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Meshes, StagesOfAPipelineHoldTheModelOnceAndATiedEmbeddingTwice) {
  for (const bool tied : {true, false}) {
    nn::LlamaConfig config = nn::preset("tiny");
    config.layers = 5;
    config.tied = tied;
    const Model model = model_of(config, "");
    EXPECT_EQ(is_tied(model), tied);
    std::int64_t sum = 0;
    for (int s = 0; s < 3; ++s) {
      const ModelPart part = part_of(model, {1, 1, 1, 3}, s);
      sum += part.model.parameters;
      EXPECT_EQ(std::ssize(part.model.units), s < 2 ? 2 : 1);
      EXPECT_EQ(part.frozen, tied && s == 0 ? config.vocabulary * config.hidden : 0);
      EXPECT_EQ(part.model.shape.vocabulary, s == 2 ? config.vocabulary : 0);
    }
    EXPECT_EQ(sum, model.parameters);
  }
}

// The last of four stages keeps inputs and logits of heads until the embedding's gradients come,
// four micro-batches later. GPipe keeps the logits of all anyway.
TEST(Meshes, HeadsOfATiedModelWaitForTheGradientOfTheEmbedding) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.layers = 4;
  config.vocabulary = 100'000;
  config.tied = true;
  Request request;
  request.model = model_of(config, "");
  request.batch = 2;  // 8 micro-batches of 10 tokens
  request.sequence = 10;
  const std::int64_t h = config.hidden, v = config.vocabulary;
  const std::int64_t layer = 4 * h + 4 * config.heads * config.head_size + 3 * config.mlp;
  const auto expect_last = [&](std::int64_t elements) {
    const StagePlan plan = plan_stage(request, Stage::kDdp, {1, 1, 1, 4});
    ASSERT_EQ(plan.fullest, 3);
    EXPECT_EQ(plan.activations, 2 * 10 * elements);
  };
  expect_last((layer + v) + v + 4 * h + 3 * v);
  request.mesh.gpipe = true;
  expect_last(8 * (layer + v) + v + 4 * h);
}

TEST(Meshes, FitInWholeBytesAndAreInTheTables) {
  Request request;
  request.model = model_of_size(7 * kBillion, 32);
  request.mesh.tensor = 2;
  request.memory = parse_memory("40GB");
  const Plan plan = make_plan(request);
  EXPECT_FALSE(request.fits(plan.stages.front()));
  const StagePlan& zero1 = plan.stages[1];
  const auto gb = [](auto bytes) { return in(static_cast<double>(bytes), Unit::kGB); };
  EXPECT_THAT(to_text(plan),
              AllOf(HasSubstr("bubble"), Not(HasSubstr("break-even")),
                    ContainsRegex("ZeRO-1 on 1x4x2x1 .* " + gb(zero1.total()) + "  yes\n"),
                    ContainsRegex(fmt::format("ZeRO-1 on 1x4x2x1 +{} +{} +{} +{} +{} +1 ",
                                              gb(zero1.sent.shards), gb(zero1.sent.replicas),
                                              gb(zero1.sent.tensor), gb(zero1.sent.pipeline),
                                              gb(zero1.sent.total())))));
  request.memory->bytes = plan.stages[3].total() - 1;
  EXPECT_FALSE(make_plan(request).feasible());
}

}  // namespace
}  // namespace zero::plan

// Meshes against numbers of the sources and of chapters 06, 08 and 09, by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>

#include "report.hpp"

namespace zero::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Request mesh_request(const Model& model, std::int64_t ranks, std::int64_t tensor,
                     std::int64_t pipeline) {
  Request request;
  request.model = model;
  request.world_size = ranks;
  request.mesh.tensor = tensor;
  request.mesh.pipeline = pipeline;
  return request;
}

// The row of a stage on one mesh.
StagePlan row_of(const Request& request, Stage stage) {
  for (const StagePlan& plan : make_plan(request).stages) {
    if (plan.stage == stage) return plan;
  }
  throw Error("no such row");
}

std::int64_t model_states_on(const Request& request, Stage stage) {
  return row_of(request, stage).states.total();
}

// Of hidden size 4270.
Model seven_billion() { return model_of_size(7 * kBillion, 32); }

TEST(Meshes, EightGpusAsData4AndTensor2) {
  const Request request = mesh_request(seven_billion(), 8, 2, 1);
  // 3.5 B parameters a rank, and ZeRO over the 4.
  EXPECT_EQ(model_states_on(request, Stage::kDdp), 56 * kGB);
  EXPECT_EQ(model_states_on(request, Stage::kZero1), 24'500'000'000);
  EXPECT_EQ(model_states_on(request, Stage::kZero2), 19'250'000'000);
  EXPECT_EQ(model_states_on(request, Stage::kZero3), 14 * kGB);
  const StagePlan ddp = row_of(request, Stage::kDdp), zero3 = row_of(request, Stage::kZero3);
  EXPECT_EQ(text(ddp.mesh), "4x1x2x1");
  EXPECT_EQ(text(zero3.mesh), "1x4x2x1");
  EXPECT_DOUBLE_EQ(ddp.sent.replicas, 2 * 7e9 * 3 / 4);
  EXPECT_DOUBLE_EQ(row_of(request, Stage::kZero2).sent.shards, 2 * 7e9 * 3 / 4);
  EXPECT_DOUBLE_EQ(zero3.sent.shards, 3 * 7e9 * 3 / 4);
  // 8 b s h (T-1)/T numbers of 2 bytes a layer; two samples of 2048 tokens.
  EXPECT_DOUBLE_EQ(zero3.sent.tensor, 32 * 8 * 4096 * 4270.0 / 2 * 2);
  EXPECT_DOUBLE_EQ(zero3.sent.total(), zero3.sent.shards + zero3.sent.tensor);
  EXPECT_EQ(zero3.bubble(), 0);
}

TEST(Meshes, FourStagesThatAreAGroupOfFourEach) {
  const Request request = mesh_request(seven_billion(), 16, 1, 4);
  EXPECT_EQ(model_states_on(request, Stage::kZero2), 9'625'000'000);
  EXPECT_EQ(model_states_on(request, Stage::kZero3), 7 * kGB);
  const StagePlan zero2 = row_of(request, Stage::kZero2);
  EXPECT_EQ(zero2.micro_batches, 4);  // of a sample each
  EXPECT_DOUBLE_EQ(zero2.bubble(), 3.0 / 7);
  EXPECT_DOUBLE_EQ(zero2.sent.shards, 2 * 3.5e9 * 3 / 4);
  // A stage between two others sends A forwards and A back, of four micro-batches.
  EXPECT_DOUBLE_EQ(zero2.sent.pipeline, 2 * 4 * 2048 * 4270.0 * 2);
  // ZeRO-3 gathers twice for each of them.
  EXPECT_DOUBLE_EQ(row_of(request, Stage::kZero3).sent.shards, 9 * 3.5e9 * 3 / 4);
}

// 24 layers of 12 h^2, h = 2048, 4 stages x 2 data ranks x 2 tensor ranks, 12 micro-batches of 1024
// tokens.
Request exercise_09b() {
  Request request = mesh_request(model_of_size(24LL * 12 * 2048 * 2048, 24), 16, 2, 4);
  request.batch = 3;  // 24 samples a data rank
  request.sequence = 512;
  request.mesh.micro_batches = 12;
  return request;
}

TEST(Meshes, HaveTheNumbersOfExercise09b) {
  Request request = exercise_09b();
  const StagePlan zero2 = row_of(request, Stage::kZero2), zero3 = row_of(request, Stage::kZero3);
  EXPECT_DOUBLE_EQ(zero2.bubble(), 0.2);
  EXPECT_DOUBLE_EQ(zero2.sent.tensor / kMiB, 1152);
  EXPECT_DOUBLE_EQ(zero2.sent.pipeline / kMiB, 96);
  EXPECT_DOUBLE_EQ(zero2.sent.shards / kMiB, 288);
  EXPECT_DOUBLE_EQ(zero3.sent.shards / kMiB, 3600);
  // Scratch, whole gradients less the rank's own half, and three messages.
  EXPECT_EQ(zero2.transients / kMiB, 32 + 288 / 2 + 3 * 4);
  // Inputs of layers, and all of the one layer that runs again.
  constexpr std::int64_t kLayer = (4 + 4 / 2 + 2 * 4 / 2) * 4;
  const auto inputs = [&] { return row_of(request, Stage::kZero2).activations / kMiB - kLayer; };
  request.recompute = true;
  EXPECT_EQ(row_of(request, Stage::kZero2).fullest, 0);
  EXPECT_EQ(inputs(), 96);
  EXPECT_DOUBLE_EQ(row_of(request, Stage::kZero2).sent.tensor / kMiB, 1152 * 1.5);
  request.mesh.partition_activations = true;
  EXPECT_EQ(inputs(), 48);
  EXPECT_DOUBLE_EQ(row_of(request, Stage::kZero2).sent.tensor / kMiB, 1152 * 1.625);
  request.mesh.partition_activations = false;
  request.mesh.gpipe = true;
  EXPECT_EQ(inputs(), 288);
}

// One layer of hidden size 1024 on 8 tensor ranks with 1024 tokens, so that s b h is a MiB.
TEST(Meshes, ActivationsOfALayerAreThoseOfKorthikantiWithoutDropout) {
  Request request = mesh_request(model_of_size(12 * 1024 * 1024, 1), 8, 8, 1);
  request.sequence = 128;
  const auto mib = [&] {
    return static_cast<double>(row_of(request, Stage::kDdp).activations) / kMiB;
  };
  EXPECT_DOUBLE_EQ(mib(), 8 + 24.0 / 8);
  request.recompute = true;
  EXPECT_DOUBLE_EQ(mib(), 2 + 11);
  request.mesh.partition_activations = true;
  EXPECT_DOUBLE_EQ(mib(), 2.0 / 8 + 11);
  request.mesh.partition_activations = false;
  request.mesh.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(mib(), 2.0 / 8 + 7.5);
  request.recompute = false;
  // Less 4 for the gathered outputs of norms, which the paper does not keep whole: 32/8.
  EXPECT_DOUBLE_EQ(mib() - 4 * 7.0 / 8, 32.0 / 8);
}

// The last of four stages keeps inputs and logits of heads until the embedding's gradients come,
// four micro-batches later. GPipe keeps the logits of all anyway.
TEST(Meshes, HeadsOfATiedModelWaitForTheGradientOfTheEmbedding) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.layers = 4;
  config.vocabulary = 100'000;
  config.tied = true;
  Request request = mesh_request(model_of(config, ""), 4, 1, 4);
  request.batch = 2;  // 8 micro-batches of 10 tokens
  request.sequence = 10;
  const std::int64_t h = config.hidden, v = config.vocabulary;
  const std::int64_t layer = 4 * h + 4 * config.heads * config.head_size + 3 * config.mlp;
  StagePlan plan = row_of(request, Stage::kDdp);
  ASSERT_EQ(plan.fullest, 3);
  EXPECT_EQ(plan.activations, 2 * 10 * ((layer + v) + v + 4 * h + 3 * v));
  request.mesh.gpipe = true;
  plan = row_of(request, Stage::kDdp);
  ASSERT_EQ(plan.fullest, 3);
  EXPECT_EQ(plan.activations, 2 * 10 * (8 * (layer + v) + v + 4 * h));
}

TEST(Meshes, HaveTheNumbersOfTheLessonsForLlama360m) {
  const Model model = model_of(nn::preset("llama-360m"), "");
  EXPECT_EQ(part_of(model, {1, 1, 2, 1}, 0).model.parameters, 178'484'160);
  Request request = mesh_request(model, 2, 2, 1);
  request.policy = fp32();
  request.sequence = 1024;  // two samples: 2048 tokens
  EXPECT_DOUBLE_EQ(row_of(request, Stage::kDdp).sent.tensor, 975.0 * kMiB + 16 * 1024);
  request = mesh_request(model, 4, 1, 4);
  request.policy = fp32();
  request.batch = 2;  // 8 micro-batches of 2048 tokens
  EXPECT_DOUBLE_EQ(row_of(request, Stage::kDdp).sent.pipeline, (60.0 + 180) * kMiB);
}

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

// In a step of SmolLM2-135M on two groups of two: the table of lesson 06.
TEST(Meshes, GroupsSendAShardOfTheGradientsBetweenThem) {
  Request request = mesh_request(model_of(nn::preset("smollm2-135m"), ""), 4, 1, 1);
  request.policy = fp32();
  request.mesh.shards = 2;
  const auto v = static_cast<double>(4 * request.model.parameters);
  const StagePlan zero2 = row_of(request, Stage::kZero2), zero3 = row_of(request, Stage::kZero3);
  EXPECT_DOUBLE_EQ(zero2.sent.shards / v, 1);
  EXPECT_DOUBLE_EQ(zero2.sent.replicas / v, 0.5);
  EXPECT_NEAR(zero3.sent.total() / v, 1.8948, 5e-5);
  EXPECT_EQ(zero3.states.total(), 16 * request.model.parameters / 2);
  EXPECT_EQ(text(zero3.mesh), "2x2x1x1");
}

TEST(Meshes, OfDataRanksAloneHoldAndSendWhatTheStagesDo) {
  for (const char* name : {"llama-360m", "smollm2-360m"}) {
    Request request;
    request.model = model_of(nn::preset(name), name);
    const auto& [layers, hidden, attention, mlp, mlp_tensors, vocabulary] = request.model.shape;
    const std::int64_t layer = layer_elements(request.model.shape);
    const double kept =
        static_cast<double>(request.model.root) / static_cast<double>(request.model.parameters);
    for (const Stage stage : kStages) {
      for (const bool recompute : {false, true}) {
        request.recompute = recompute;
        const StagePlan plan = plan_stage(request, stage, data_mesh(stage, 8));
        EXPECT_EQ(plan.states, model_states(request.model.parameters, mixed(), stage, 8));
        EXPECT_EQ(
            plan.activations,
            2 * 2048 * (2 * vocabulary + (recompute ? layers * hidden + layer : layers * layer)));
        const Copies v = copies(request.model.parameters, mixed());
        EXPECT_DOUBLE_EQ(plan.sent.total(), sent(scheme_of(stage), v, 8, kept).total());
      }
    }
  }
}

// DDP shares nothing; a pipeline of a tied model has no ZeRO-3; --stage leaves one.
TEST(Meshes, HaveARowForEachStageThatIsPossible) {
  const auto rows = [](const Request& request) {
    std::vector<std::string> texts;
    for (const StagePlan& plan : make_plan(request).stages) {
      EXPECT_EQ(plan.mesh.ranks(), request.world_size);
      texts.push_back(fmt::format("{} {}", name(plan.stage), text(plan.mesh)));
    }
    return texts;
  };
  Request request = mesh_request(model_of(nn::preset("smollm2-360m"), ""), 8, 1, 2);
  EXPECT_THAT(rows(request), ElementsAre("DDP 4x1x1x2", "ZeRO-1 1x4x1x2", "ZeRO-2 1x4x1x2"));
  request.stage = Stage::kZero2;
  EXPECT_THAT(rows(request), ElementsAre("ZeRO-2 1x4x1x2"));
  request.stage.reset();
  request.mesh.shards = 2;
  EXPECT_THAT(rows(request), ElementsAre("ZeRO-1 2x2x1x2", "ZeRO-2 2x2x1x2"));
  request.mesh.shards = 1;
  EXPECT_THAT(rows(request), ElementsAre("DDP 4x1x1x2"));
  request = mesh_request(seven_billion(), 8, 8, 1);
  request.stage = Stage::kZero3;  // a rank alone on its axis shares nothing
  EXPECT_THAT(rows(request), ElementsAre("DDP 1x1x8x1"));
}

TEST(Meshes, FitInWholeBytesAndAreInTheTables) {
  Request request = mesh_request(seven_billion(), 8, 2, 1);
  request.memory = parse_memory("40GB");
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.feasible());
  for (const StagePlan& m : plan.stages) EXPECT_EQ(request.fits(m), m.total() <= 40 * kGB);
  EXPECT_FALSE(request.fits(plan.stages.front()));
  EXPECT_THAT(to_text(plan), AllOf(HasSubstr("ZeRO-1 on 1x4x2x1"), HasSubstr("  40.00 GB\n"),
                                   HasSubstr("bubble"), Not(HasSubstr("break-even"))));
  const StagePlan& zero1 = plan.stages[1];
  const auto gb = [](double bytes) { return in(bytes, Unit::kGB); };
  EXPECT_THAT(to_text(plan),
              ::testing::ContainsRegex("ZeRO-1 on 1x4x2x1 .* " +
                                       gb(static_cast<double>(zero1.total())) + "  yes\n"));
  EXPECT_THAT(to_text(plan), ::testing::ContainsRegex(fmt::format(
                                 "ZeRO-1 on 1x4x2x1 +{} +{} +{} +{} +{} +1 ", gb(zero1.sent.shards),
                                 gb(zero1.sent.replicas), gb(zero1.sent.tensor),
                                 gb(zero1.sent.pipeline), gb(zero1.sent.total()))));
  request.memory->bytes = plan.stages[3].total() - 1;
  EXPECT_FALSE(make_plan(request).feasible());
}

TEST(Meshes, WhatCannotBeIsRefusedByName) {
  const auto refused = [](const Request& request, const std::vector<std::string>& words) {
    testing::expect_error([&] { make_plan(request); }, words);
  };
  const Model smollm2 = model_of(nn::preset("smollm2-360m"), "");
  refused(mesh_request(smollm2, 8, 2, 1), {"the model has 15 heads"});
  refused(mesh_request(smollm2, 64, 1, 64), {"--pp 64: the model has 32 layers"});
  refused(mesh_request(smollm2, 8, 3, 1), {"--world-size 8 has no mesh with this --tp"});
  Request request = mesh_request(seven_billion(), 8, 2, 2);
  request.mesh.shards = 4;
  refused(request, {"--world-size 8 has no mesh with this --tp, --pp, --shard-size"});
  request.mesh.shards.reset();
  request.mesh.micro_batches = 3;
  refused(request, {"--micro-batches 3 does not divide the 4 samples", "--batch 1 x --tp 2"});
  request.mesh.micro_batches.reset();
  request.sequence = 2047;
  request.mesh.sequence_parallel = true;
  refused(request, {"--tp 2 does not divide --sequence 2047"});
  request = mesh_request(smollm2, 8, 1, 2);
  request.stage = Stage::kZero3;
  refused(request, {"whose head is its embedding has no zero3"});
}

// The most tokens on the most ranks, and the largest model.
TEST(Meshes, OfTheLargestNumbersAreCountedOrRefused) {
  Request request =
      mesh_request(model_of_size(nn::kMostParameters, nn::kMostLayers), 1'000'000, 1000, 1000);
  const StagePlan plan = row_of(request, Stage::kDdp);
  EXPECT_GT(plan.total(), 16 * nn::kMostParameters / 1'000'000);
  EXPECT_GT(plan.sent.tensor, 0);
  request.batch = kLargestBatch;
  request.sequence = kMostTokens / kLargestBatch;
  testing::expect_error([&] { make_plan(request); }, {"more than can be counted"});
}

}  // namespace
}  // namespace zero::plan

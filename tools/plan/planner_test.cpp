// What the planner says and chooses where a line of figures.csv cannot say it, parts of a model on
// a mesh, and from which ratio of bandwidths on HSDP and the parts of ZeRO++ pay.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include <tools/models/presets.hpp>

#include "program.hpp"

namespace zero::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Request request_for(std::int64_t parameters, std::int64_t ranks, const char* memory) {
  Request request;
  request.model = model_of_size(parameters);
  request.world_size = ranks;
  request.memory = parse_memory(memory);
  return request;
}

// One byte decides, and the words do not hide it.
TEST(Planner, NeverRoundsANoIntoAYes) {
  Request request = request_for(3 * kBillion / 2, 8, "16GB");
  const std::int64_t needed =
      plan_stage(request, Stage::kZero3, data_mesh(Stage::kZero3, 8)).total();
  request.memory->bytes = needed;
  EXPECT_EQ(make_plan(request).choice.taken.value().stage, Stage::kZero3);
  request.memory->bytes = needed - 1;
  const Plan no = make_plan(request);
  EXPECT_FALSE(no.feasible());
  EXPECT_THAT(no.choice.says, AllOf(HasSubstr(at_least(needed, Unit::kGB)),
                                    HasSubstr(at_most(needed - 1, Unit::kGB))));
  EXPECT_NE(at_least(needed, Unit::kGB), at_most(needed - 1, Unit::kGB));
}

// docs/planner.md, "Which stage, when": v seconds to gather, c to compute.
TEST(Planner, ManyEqualUnitsExposeWhatThePageSays) {
  for (const double t : {0.1, 0.3, 0.5, 0.9, 3.0}) {  // with C = 1
    Request request = request_for(kBillion, 2, "100GB");
    request.model = model_of_size(kBillion, /*layers=*/1000);
    request.machine = {
        .bandwidth = kBillion / t, .latency = 0, .flops = 6.0 * kBillion * request.sequence};
    const Plan plan = make_plan(request);
    const double forward = std::max(0.0, t - 1 / 3.0), half = std::max(0.0, t - 2 / 3.0);
    const auto exposed = [&](Stage stage) {
      return plan.stages[static_cast<std::size_t>(stage)].time.exposed;
    };
    EXPECT_NEAR(exposed(Stage::kDdp), 2 * forward, 0.01);
    EXPECT_NEAR(exposed(Stage::kZero1), forward + half, 0.01);
    EXPECT_NEAR(exposed(Stage::kZero2), forward + half, 0.01);
    EXPECT_NEAR(exposed(Stage::kZero3), 3 * forward, 0.03);
  }
}

TEST(Planner, LookaheadNeedsRoom) {
  Request request = request_for(7 * kBillion, 64, "80GB");
  request.machine.bandwidth = 25e9;
  EXPECT_THAT(to_text(make_plan(request)), HasSubstr("exposed with any k"));
  request.memory->bytes = plan_stage(request, Stage::kZero3, data_mesh(Stage::kZero3, 64)).total();
  const Plan tight = make_plan(request);
  EXPECT_EQ(tight.lookahead.needed, 1);
  EXPECT_EQ(tight.lookahead.used, 0);
  EXPECT_THAT(to_text(tight), HasSubstr("room for 0"));
  request.machine.bandwidth = 100e9;
  EXPECT_THAT(to_text(make_plan(request)), Not(HasSubstr("exposed with any k")));
}

// The last of four stages keeps inputs and logits of heads until the embedding's gradients come,
// four micro-batches later.
TEST(Meshes, HeadsOfATiedModelWaitForTheGradientOfTheEmbedding) {
  nn::LlamaConfig config = tools::preset("tiny");
  config.layers = 4;
  config.vocabulary = 100'000;
  config.tied = true;
  Request request;
  request.model = model_of(config, "");
  request.batch = 2;  // 8 micro-batches of 10 tokens
  request.sequence = 10;
  const std::int64_t h = config.hidden, v = config.vocabulary;
  const std::int64_t layer = 4 * h + 4 * config.heads * config.head_size + 3 * config.mlp;
  const StagePlan plan = plan_stage(request, Stage::kDdp, {1, 1, 1, 4});
  ASSERT_EQ(plan.fullest, 3);
  EXPECT_EQ(plan.activations, 2 * 10 * ((layer + v) + v + 4 * h + 3 * v));
}

TEST(Hosts, AtTheRatioFromWhichAWayPaysItTakesTheTimeOfZero3) {
  for (const auto& [hosts, ranks] : {std::pair{2, 2}, {3, 2}, {4, 8}, {64, 8}}) {
    Request request = request_for(kBillion, hosts * ranks, "1GB");
    request.memory.reset();
    request.policy = fp32();
    request.model.root = kBillion / 10;
    request.hosts.ranks_per_host = ranks;
    const std::vector<HostPlan> ways = make_plan(request).hosts;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      SCOPED_TRACE(ways[i].name);
      EXPECT_EQ(ways[i].pays_from.has_value(), ways[i].name != "ZeRO-3");
      // What saves enough inside a host pays at any ratio.
      if (ways[i].pays_from.value_or(0) == 0) continue;
      const auto gained = [&](double ratio) {
        request.hosts.bandwidth = request.machine.bandwidth / ratio;
        const std::vector<HostPlan> plans = make_plan(request).hosts;
        return plans.front().seconds - plans[i].seconds;
      };
      EXPECT_LT(gained(0.999 * *ways[i].pays_from), 0);
      EXPECT_GT(gained(1.001 * *ways[i].pays_from), 0);
      EXPECT_GT(gained(10 * *ways[i].pays_from), 0);
    }
  }
}

}  // namespace
}  // namespace zero::plan

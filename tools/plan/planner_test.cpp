#include "planner.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <tests/support/error_of.hpp>

namespace zero::plan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

Request request_for(std::int64_t parameters, std::int64_t ranks, const char* memory) {
  Request request;
  request.model = model_of_size(parameters);
  request.world_size = ranks;
  request.memory = parse_memory(memory);
  return request;
}

TEST(Planner, ThirteenBillionFitNoStageOnEightCardsOf24GB) {
  const Plan plan = make_plan(request_for(13 * kBillion, 8, "24GB"));
  EXPECT_FALSE(plan.feasible());
  EXPECT_FALSE(plan.choice.stage.has_value());
  EXPECT_EQ(plan.choice.says, "No stage fits 24.00 GB on 8 ranks.");
  const double expected[] = {208, 71.5, 48.75, 26, 6.5};
  ASSERT_EQ(plan.stages.size(), 5U);
  for (int i = 0; i < 5; ++i) {
    EXPECT_DOUBLE_EQ(static_cast<double>(plan.stages[i].states.total()) / 1e9, expected[i]);
  }
  EXPECT_THAT(plan.choice.reasons.front(),
              HasSubstr("26.00 GB of model states, 1.18 GB of transients and 13.65 GB of act"));
  EXPECT_EQ(plan.choice.ranks_for_states, 9);
  EXPECT_THAT(plan.choice.reasons, Contains(HasSubstr("from 9 ranks on (23.12 GB)")));
  ASSERT_TRUE(plan.choice.ranks_for_all.has_value());
  EXPECT_GT(*plan.choice.ranks_for_all, 9);
  EXPECT_THAT(plan.choice.reasons, Contains(HasSubstr("keeps 6.50 GB of model states")));
}

TEST(Planner, FromTheRanksThatItNamesOnItFits) {
  const Plan no = make_plan(request_for(13 * kBillion, 8, "24GB"));
  const std::int64_t ranks = *no.choice.ranks_for_all;
  EXPECT_EQ(make_plan(request_for(13 * kBillion, ranks, "24GB")).choice.stage, Stage::kZero3);
  EXPECT_FALSE(make_plan(request_for(13 * kBillion, ranks - 1, "24GB")).feasible());
}

TEST(Planner, TheLowestStageThatFitsIsTaken) {
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "80GB")).choice.stage, Stage::kDdp);
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "16GB")).choice.stage, Stage::kZero1);
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "10GB")).choice.stage, Stage::kZero2);
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "8GB")).choice.stage, Stage::kZero3);
  EXPECT_FALSE(make_plan(request_for(3 * kBillion / 2, 8, "6GB")).choice.stage.has_value());
}

TEST(Planner, SaysWhy) {
  const Choice zero1 = make_plan(request_for(3 * kBillion / 2, 8, "16GB")).choice;
  EXPECT_THAT(zero1.says, HasSubstr("Take ZeRO-1"));
  EXPECT_THAT(zero1.reasons, Contains(HasSubstr("costs nothing on the wire")));
  EXPECT_THAT(zero1.reasons, Contains(HasSubstr("ZeRO-2 would free another")));
  const Choice zero3 = make_plan(request_for(3 * kBillion / 2, 8, "8GB")).choice;
  EXPECT_THAT(zero3.reasons, Contains(HasSubstr("half as much again")));
  EXPECT_THAT(zero3.reasons, Contains(HasSubstr("Activations dominate")));
  EXPECT_THAT(zero1.reasons, Not(Contains(HasSubstr("Activations dominate"))));
  const Choice ddp = make_plan(request_for(3 * kBillion / 2, 8, "80GB")).choice;
  EXPECT_THAT(ddp.reasons, Contains(HasSubstr("Nothing has to be sharded")));
  EXPECT_THAT(ddp.reasons, Contains(HasSubstr("ZeRO-1 would free another")));
}

// One byte decides, and the words do not hide it.
TEST(Planner, NeverRoundsANoIntoAYes) {
  Request request = request_for(3 * kBillion / 2, 8, "16GB");
  const std::int64_t needed =
      plan_stage(request, Stage::kZero3, /*offloaded=*/false, 8, /*lookahead=*/0).total();
  request.memory->bytes = needed;
  EXPECT_EQ(make_plan(request).choice.stage, Stage::kZero3);
  request.memory->bytes = needed - 1;
  const Plan no = make_plan(request);
  EXPECT_FALSE(no.feasible());
  EXPECT_THAT(no.choice.reasons.front(), HasSubstr(at_least(needed, Unit::kGB)));
  EXPECT_THAT(no.choice.says, HasSubstr(at_most(needed - 1, Unit::kGB)));
  EXPECT_NE(at_least(needed, Unit::kGB), at_most(needed - 1, Unit::kGB));
}

TEST(Planner, OneStageOnly) {
  Request request = request_for(3 * kBillion / 2, 8, "16GB");
  request.stage = Stage::kDdp;
  const Plan plan = make_plan(request);
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_EQ(plan.choice.says, "DDP does not fit 16.00 GB on 8 ranks.");
  EXPECT_FALSE(plan.choice.ranks_for_states.has_value());
  EXPECT_THAT(plan.choice.reasons, Contains(HasSubstr("With no number of ranks: 24.00 GB")));
  request.stage = Stage::kZero2;
  EXPECT_EQ(make_plan(request).choice.stage, Stage::kZero2);
}

TEST(Planner, ActivationsThatAloneAreTooMuchAreNotCuredByRanks) {
  Request request = request_for(13 * kBillion, 8, "24GB");
  request.batch = 8;
  const Choice choice = make_plan(request).choice;
  EXPECT_EQ(choice.ranks_for_states, 9);
  EXPECT_FALSE(choice.ranks_for_all.has_value());
  EXPECT_THAT(choice.reasons, Contains(HasSubstr("with no number of ranks, they alone need")));
  request.recompute = Recompute::kLayers;
  EXPECT_TRUE(make_plan(request).choice.ranks_for_all.has_value());
}

TEST(Planner, WithoutMemoryThereIsNoVerdict) {
  Request request = request_for(kBillion, 8, "1GB");
  request.memory.reset();
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.feasible());
  EXPECT_TRUE(plan.choice.says.empty());
  EXPECT_THAT(to_text(plan), Not(HasSubstr("fits")));
}

TEST(Planner, TransientsAreWhatAStepHoldsBesides) {
  Request request;
  request.policy = fp32();
  request.world_size = 2;
  request.model.parameters = 1100;
  request.model.root = 100;
  request.model.units = {400, 600};
  const auto transients = [&](Stage stage, std::int64_t n) {
    return plan_stage(request, stage, false, n, 0).transients;
  };
  EXPECT_EQ(transients(Stage::kDdp, 2), kReductionScratch);
  EXPECT_EQ(transients(Stage::kZero1, 2), kReductionScratch);
  EXPECT_EQ(transients(Stage::kZero2, 2), kReductionScratch + 350 * 4);
  EXPECT_EQ(transients(Stage::kZero3, 2), kReductionScratch + 350 * 8);
  for (const Stage stage : kStages) EXPECT_EQ(transients(stage, 1), 0);
}

TEST(Planner, LookaheadNeedsRoom) {
  Request request = request_for(7 * kBillion, 64, "80GB");
  request.machine.bandwidth = 25e9;
  const Plan roomy = make_plan(request);
  EXPECT_EQ(roomy.lookahead.needed, 1);
  EXPECT_EQ(roomy.lookahead.used, 1);
  EXPECT_THAT(roomy.lookahead.says, HasSubstr("stays exposed with any k"));
  request.memory->bytes = plan_stage(request, Stage::kZero3, false, 64, 0).total();
  const Plan tight = make_plan(request);
  EXPECT_EQ(tight.lookahead.needed, 1);
  EXPECT_EQ(tight.lookahead.room, 0);
  EXPECT_EQ(tight.lookahead.used, 0);
  EXPECT_THAT(tight.lookahead.says, HasSubstr("room for 0"));
  request.machine.bandwidth = 100e9;
  EXPECT_THAT(make_plan(request).lookahead.says, Not(HasSubstr("stays exposed")));
}

// A product of two numbers that are each within their bounds.
TEST(Planner, TokensAreBoundedToo) {
  Request request = request_for(1000, kLargestWorldSize, "24GB");
  request.batch = kLargestBatch;
  request.sequence = kMostTokens / kLargestBatch;
  EXPECT_THAT(to_text(make_plan(request)), HasSubstr(" 1,099,511,627,776,000,000"));
  ++request.sequence;
  testing::expect_error([&] { make_plan(request); },
                        {"1099512676352 tokens a rank, but at most 1099511627776"});
}

TEST(Planner, TheLargestModelIsCounted) {
  Request request = request_for(1000, 2, "24GB");
  request.model = model_of_size(nn::kMostParameters, nn::kMostLayers);
  const Plan plan = make_plan(request);
  EXPECT_THAT(to_text(plan), AllOf(HasSubstr("1,000,000,000,000,000 parameters"),
                                   HasSubstr("10000 layers"), Not(ContainsRegex(" -[0-9]"))));
  EXPECT_FALSE(plan.feasible());
  EXPECT_EQ(plan.stages.front().states.total(), 16 * nn::kMostParameters);
  EXPECT_EQ(plan.stages[3].transients, kReductionScratch + 4 * 50 * kBillion);
  const double compute = compute_seconds(nn::kMostParameters, request.tokens(), request.machine);
  for (const StagePlan& stage : plan.stages) {
    EXPECT_NEAR(stage.time.compute / compute, 1, 1e-9);
    EXPECT_GT(stage.activations, 0);
  }
}

TEST(Planner, TextSaysUnitsAndStagesAndVerdict) {
  const std::string text = to_text(make_plan(request_for(13 * kBillion, 8, "24GB")));
  for (const char* part : {"13,000,000,000 parameters", "2 + 2 + 12 bytes", "GB = 10^9", "ZeRO-3",
                           "No stage fits 24.00 GB on 8 ranks.", "87.5 % of it redundant",
                           "k* = ", "break-even batch", "tensor parallelism", "Hybrid"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Planner, JsonHoldsWhatTheTextSays) {
  const Plan plan = make_plan(request_for(13 * kBillion, 8, "24GB"));
  const base::Json json = to_json(plan);
  EXPECT_EQ(json["world_size"], 8);
  EXPECT_EQ(json["memory_bytes"], 24 * kBillion);
  EXPECT_EQ(json["stages"].size(), 5U);
  EXPECT_EQ(json["stages"][3]["model_states"]["total_bytes"], 26 * kBillion);
  EXPECT_EQ(json["stages"][3]["fits"], false);
  EXPECT_DOUBLE_EQ(json["stages"][0]["sent_in_v"], 1.75);
  EXPECT_TRUE(json["choice"]["stage"].is_null());
  EXPECT_EQ(json["choice"]["ranks_for_model_states"], 9);
  EXPECT_EQ(json["curves"].size(), 3U);
  EXPECT_EQ(json["curves"][1]["world_size"], 8);
  EXPECT_EQ(json["curves"][1]["points"][0]["model_state_bytes"], 208 * kBillion);
  EXPECT_EQ(json["beside"][0]["name"], "ZeRO-1 naive");
}

}  // namespace
}  // namespace zero::plan

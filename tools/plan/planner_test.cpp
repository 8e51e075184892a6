#include "planner.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

#include <tests/support/error_of.hpp>

#include "report.hpp"

namespace zero::plan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
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
  EXPECT_FALSE(plan.choice.taken.has_value());
  EXPECT_THAT(plan.choice.says, AllOf(HasSubstr("24.00 GB"), HasSubstr("8 ranks")));
  const double expected[] = {208, 71.5, 48.75, 26, 6.5};
  ASSERT_EQ(plan.stages.size(), 5U);
  for (int i = 0; i < 5; ++i) {
    EXPECT_DOUBLE_EQ(static_cast<double>(plan.stages[i].states.total()) / 1e9, expected[i]);
  }
  EXPECT_EQ(plan.choice.ranks_for_states, 9);
  EXPECT_EQ(plan.choice.ranks_for_all, 23);
  EXPECT_THAT(plan.choice.says, AllOf(HasSubstr("ZeRO-3 needs 40.82 GB"), HasSubstr("from 9 ranks"),
                                      HasSubstr("from 23 ranks")));
}

TEST(Planner, FromTheRanksThatItNamesOnItFits) {
  const Plan no = make_plan(request_for(13 * kBillion, 8, "24GB"));
  const std::int64_t ranks = *no.choice.ranks_for_all;
  EXPECT_EQ(make_plan(request_for(13 * kBillion, ranks, "24GB")).choice.taken.value().stage,
            Stage::kZero3);
  EXPECT_FALSE(make_plan(request_for(13 * kBillion, ranks - 1, "24GB")).feasible());
}

TEST(Planner, TheLowestStageThatFitsIsTakenIfTheLinkHidesBehindComputing) {
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "80GB")).choice.taken.value().stage,
            Stage::kDdp);
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "16GB")).choice.taken.value().stage,
            Stage::kZero1);
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "10GB")).choice.taken.value().stage,
            Stage::kZero2);
  EXPECT_EQ(make_plan(request_for(3 * kBillion / 2, 8, "8GB")).choice.taken.value().stage,
            Stage::kZero3);
  EXPECT_FALSE(make_plan(request_for(3 * kBillion / 2, 8, "6GB")).choice.taken.has_value());
}

TEST(Planner, SaysWhatToTakeAndWhatIsNext) {
  const auto says = [](const char* memory) {
    return make_plan(request_for(3 * kBillion / 2, 8, memory)).choice.says;
  };
  EXPECT_THAT(says("16GB"),
              AllOf(HasSubstr("Take ZeRO-1: "), HasSubstr(", 16.00 GB there"),
                    HasSubstr("DDP does not fit"),
                    HasSubstr("Next best: ZeRO-2, with equal time and 2.49 GB less memory")));
  EXPECT_THAT(says("80GB"),
              AllOf(HasSubstr("Take DDP"),
                    HasSubstr("Next best: ZeRO-1, with equal time and 15.75 GB less memory")));
  EXPECT_THAT(says("8GB"), AllOf(HasSubstr("Take ZeRO-3"), HasSubstr("No other stage fits")));
}

// On two ranks, four equal units of 10^9 parameters. A unit's forward takes a second and its
// backward two; its gather or reduction takes `transfer` seconds.
Request four_units(double transfer, const char* memory) {
  Request request = request_for(4 * kBillion, 2, memory);
  request.model = model_of_size(4 * kBillion, /*layers=*/4);
  request.machine = {.bandwidth = 1e9 / transfer, .latency = 0, .flops = 2e9 * 2048};
  return request;
}

TEST(Planner, AStepTakesWhatOneLinkAndFourUnitsTake) {
  const auto expect_seconds = [](double transfer, const std::vector<double>& expected) {
    const Plan plan = make_plan(four_units(transfer, "100GB"));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(plan.stages[i].time.total(), expected[i], 1e-9) << name(plan.stages[i].stage);
    }
  };
  // Computing takes 12. Exposed is DDP's last all-reduce; the first gather and the last reduction;
  // with gathers in both passes three.
  expect_seconds(1, {14, 14, 14, 15});
  // DDP: 4 in forward; in backward 2 and then four all-reduces of 4 in a row. Stages 1 and 2: four
  // gathers and a unit, 9; in backward the last reduction is exposed, 10. Stage 3: 9; in backward
  // four gathers and four reductions in a row, 16.
  expect_seconds(2, {22, 19, 19, 25});
}

TEST(Planner, OfThoseThatFitTheLowestIsTakenThatIsAsQuickAsTheQuickest) {
  const auto choice = [](const Request& request) { return make_plan(request).choice; };
  EXPECT_EQ(choice(four_units(1, "100GB")).taken.value().stage, Stage::kDdp);
  EXPECT_EQ(choice(four_units(1, "100GB")).next.value().stage, Stage::kZero1);
  const Choice slow = choice(four_units(2, "100GB"));
  EXPECT_EQ(slow.taken.value().stage, Stage::kZero1);
  EXPECT_EQ(slow.next.value().stage, Stage::kZero2);
  EXPECT_THAT(slow.says, AllOf(HasSubstr("A step takes 19.00 s, of which 7.00 s exposed."),
                               HasSubstr("DDP fits too, with 15.8 % more time")));
  // With 1 + e seconds DDP takes 14 + 8 e, and stages 1 and 2 take 14 + 5 e.
  EXPECT_EQ(choice(four_units(1.04, "100GB")).taken.value().stage, Stage::kDdp);
  EXPECT_EQ(choice(four_units(1.06, "100GB")).taken.value().stage, Stage::kZero1);
  // What fits decides first, and the time of the others is their price.
  const Choice tight = choice(four_units(2, "42GB"));
  EXPECT_EQ(tight.taken.value().stage, Stage::kZero2);
  EXPECT_EQ(tight.next.value().stage, Stage::kZero3);
  EXPECT_THAT(tight.says, HasSubstr("Next best: ZeRO-3, with 31.6 % more time"));
  const Choice only = choice(four_units(2, "38GB"));
  EXPECT_EQ(only.taken.value().stage, Stage::kZero3);
  EXPECT_FALSE(only.next.has_value());
  EXPECT_THAT(only.says, HasSubstr("No other stage fits"));
}

TEST(Planner, BatchAndLatencyDecideAsTheBandwidthDoes) {
  Request request = four_units(2, "100GB");
  request.batch = 2;  // a unit computes as long as it travels
  EXPECT_EQ(make_plan(request).choice.taken.value().stage, Stage::kDdp);
  request = four_units(1e-9, "100GB");
  request.machine.latency = 2;
  EXPECT_EQ(make_plan(request).choice.taken.value().stage, Stage::kZero1);
}

// docs/planner.md, "Which stage, when": T seconds to gather, C to compute.
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

TEST(Planner, ZeRO3IsNeverQuickerThanZeRO2) {
  for (const char* preset : {"tiny", "smollm2-360m", "llama-1.5b"}) {
    for (const double bandwidth : {1e8, 1e9, 1e10, 1e11, 1e12}) {
      for (const std::int64_t batch : {1, 8, 64}) {
        Request request;
        request.model = model_of(nn::preset(preset), preset);
        request.machine.bandwidth = bandwidth;
        request.batch = batch;
        const Plan plan = make_plan(request);
        EXPECT_EQ(plan.stages[1].time.total(), plan.stages[2].time.total());
        EXPECT_GE(plan.stages[3].time.total(), plan.stages[2].time.total());
      }
    }
  }
}

// Memory by model states and activations, and where the link decides by 2 T - C for DDP and stages
// 1 and 2 (T to gather all, C to compute): 1.5 B at 10 GB/s has T = 0.26 s and C = 0.12 s.
TEST(Planner, ScenariosNameTheStagesThatFollowFromMemoryAndLink) {
  std::istringstream lines(scenarios(Request()));
  std::vector<std::string> taken;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string parameters, ranks, memory, link, batch, take;
    cells >> parameters >> ranks >> memory >> link >> batch >> take;
    if (memory.ends_with("GB"))
      taken.push_back(
          fmt::format("{} {} {} {} {}: {}", parameters, ranks, memory, link, batch, take));
  }
  EXPECT_THAT(taken, ElementsAre("360M 2 24GB 100GB/s 1: DDP", "360M 2 24GB 1GB/s 1: ZeRO-1",
                                 "1.5B 8 80GB 100GB/s 1: DDP", "1.5B 8 80GB 10GB/s 1: ZeRO-1",
                                 "1.5B 8 80GB 10GB/s 8: DDP", "1.5B 8 16GB 100GB/s 1: ZeRO-1",
                                 "1.5B 8 10GB 100GB/s 1: ZeRO-2", "7B 8 80GB 100GB/s 1: ZeRO-1",
                                 "7B 8 40GB 100GB/s 1: ZeRO-2", "7B 8 40GB 10GB/s 1: ZeRO-2",
                                 "7B 64 24GB 100GB/s 1: ZeRO-3", "13B 8 24GB 100GB/s 1: none",
                                 "13B 32 24GB 100GB/s 1: ZeRO-3", "13B 32 24GB 10GB/s 1: ZeRO-3",
                                 "70B 64 80GB 100GB/s 1: ZeRO-3", "70B 64 80GB 10GB/s 1: ZeRO-3",
                                 "70B 512 80GB 100GB/s 1: ZeRO-3"));
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

TEST(Planner, OneStageOnly) {
  Request request = request_for(3 * kBillion / 2, 8, "16GB");
  request.stage = Stage::kDdp;
  const Plan plan = make_plan(request);
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_THAT(plan.choice.says, AllOf(HasSubstr("DDP"), HasSubstr("16.00 GB")));
  EXPECT_FALSE(plan.choice.ranks_for_states.has_value());
  EXPECT_THAT(plan.choice.says, HasSubstr("no number of ranks"));
  request.stage = Stage::kZero2;
  EXPECT_EQ(make_plan(request).choice.taken.value().stage, Stage::kZero2);
}

TEST(Planner, ActivationsThatAloneAreTooMuchAreNotCuredByRanks) {
  Request request = request_for(13 * kBillion, 8, "24GB");
  request.batch = 8;
  const Choice choice = make_plan(request).choice;
  EXPECT_EQ(choice.ranks_for_states, 9);
  EXPECT_FALSE(choice.ranks_for_all.has_value());
  EXPECT_THAT(choice.says, HasSubstr("no number of ranks"));
  request.recompute = true;
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
    return plan_stage(request, stage, data_mesh(stage, n)).transients;
  };
  EXPECT_EQ(transients(Stage::kDdp, 2), kReductionScratch);
  EXPECT_EQ(transients(Stage::kZero1, 2), kReductionScratch);
  EXPECT_EQ(transients(Stage::kZero2, 2), kReductionScratch + 350 * 4);
  EXPECT_EQ(transients(Stage::kZero3, 2), kReductionScratch + 350 * 8);
  for (const Stage stage : kStages) EXPECT_EQ(transients(stage, 1), 0);
}

TEST(Planner, LogitsCountTwice) {
  Request request;
  request.model.parameters = 1;
  request.model.units = {1};
  const auto activations = [&](std::int64_t vocabulary) {
    request.model.shape = {1, 1, 1, 1, 2, vocabulary};
    return plan_stage(request, Stage::kDdp, {}).activations;
  };
  EXPECT_EQ(activations(100) - activations(0), 200 * request.tokens() * 2);
}

TEST(Planner, LookaheadNeedsRoom) {
  Request request = request_for(7 * kBillion, 64, "80GB");
  request.machine.bandwidth = 25e9;
  const Plan roomy = make_plan(request);
  EXPECT_EQ(roomy.lookahead.needed, 1);
  EXPECT_EQ(roomy.lookahead.used, 1);
  EXPECT_THAT(to_text(roomy), HasSubstr("exposed with any k"));
  request.memory->bytes = plan_stage(request, Stage::kZero3, data_mesh(Stage::kZero3, 64)).total();
  const Plan tight = make_plan(request);
  EXPECT_EQ(tight.lookahead.needed, 1);
  EXPECT_EQ(tight.lookahead.used, 0);
  EXPECT_THAT(to_text(tight), HasSubstr("room for 0"));
  request.machine.bandwidth = 100e9;
  EXPECT_THAT(to_text(make_plan(request)), Not(HasSubstr("exposed with any k")));
}

// A product of two numbers that are each within their bounds.
TEST(Planner, TokensAreBoundedToo) {
  Request request = request_for(1000, kMostRanks, "24GB");
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

TEST(Planner, OptimizerStatesOnADiskAreAFileAndTwoTiles) {
  Request request = request_for(13 * kBillion, 8, "24GB");
  const Plan resident = make_plan(request);
  request.disk = {.bandwidth = 3e9, .room = parse_memory("19.5GB")};
  const Plan plan = make_plan(request);
  ASSERT_EQ(plan.stages.size(), resident.stages.size() + 1);
  const StagePlan &row = plan.stages.back(), &zero3 = plan.stages[3];
  EXPECT_EQ(row.stage, Stage::kZero3);
  EXPECT_EQ(row.disk->file, zero3.states.optimizer);
  EXPECT_EQ(row.disk->moved, 24 * (13 * kBillion) / 8);  // 24 P/N: fp32 has 16 P/N
  EXPECT_EQ(row.disk->seconds, 13.0);
  EXPECT_EQ(row.states.optimizer, 2 * ((16 << 20) + 4096));
  EXPECT_DOUBLE_EQ(row.time.total(), zero3.time.total() + 13.0);
  EXPECT_TRUE(plan.feasible());
  EXPECT_FALSE(resident.feasible());
  EXPECT_FALSE(plan.choice.taken);
  const std::string text = to_text(plan);
  EXPECT_THAT(text, ContainsRegex("ZeRO-3 \\+ disk +3.25 +3.25 +0.03 +6.53 .*  yes\n"));
  EXPECT_THAT(text, ContainsRegex("ZeRO-3 \\+ disk +68.25 +2.625 +1.065 +0.684 +13.017 +14.082"));
  EXPECT_THAT(text, ContainsRegex("With optimizer states on a\\s+disk\\s+it\\s+needs 21.35"));
  EXPECT_THAT(text, ContainsRegex("max\\(1.08 s,\\s13.00 s\\) = 13.00 s"));
  request.disk.bandwidth = 1e15;
  EXPECT_THAT(to_text(make_plan(request)), ContainsRegex("= 1.08 s"));
}

TEST(Planner, ADiskWithoutRoomIsRefusedWithTheNumber) {
  Request request = request_for(13 * kBillion, 8, "24GB");
  request.disk = {.bandwidth = 3e9, .room = parse_memory("19.4GB")};
  testing::expect_error([&] { make_plan(request); },
                        {"--disk 19.40 GB", "ZeRO-3 take 19.50 GB", "from 9 ranks on"});
  request.stage = Stage::kDdp;
  testing::expect_error([&] { make_plan(request); },
                        {"DDP take 156.00 GB", "on no number of ranks"});
}

// 10_offload/host.md asks for these.
TEST(Planner, InputsOnTheHostLeaveTwoOnTheDevice) {
  Request request;
  request.model = model_of_size(12LL * 48 * 1600 * 1600, /*layers=*/48);
  request.batch = 8;
  request.sequence = 1024;
  request.recompute = true;
  const StagePlan whole = make_plan(request).stages[3];
  request.activations_on_host = true;
  const Plan plan = make_plan(request);
  const StagePlan& held = plan.stages[3];
  const std::int64_t input = 2 * 8192 * 1600;
  EXPECT_EQ(whole.activations - held.activations, 46 * input);
  EXPECT_EQ(held.inputs.device, 2 * input);
  EXPECT_EQ(held.inputs.host, 48 * input);
  EXPECT_EQ(held.inputs.bus, 95 * input);
  EXPECT_EQ(whole.inputs.host, 0);
  EXPECT_THAT(to_text(plan), HasSubstr("the host has 1.26 GB, and 2.50 GB cross\nthe bus"));
  // A tensor rank with Pa has its part of them.
  request.mesh.tensor = 2;
  request.mesh.partition_activations = true;
  const Plan cut = make_plan(request);
  EXPECT_EQ(cut.stages.back().inputs.host, 48 * input);  // of twice the samples
  EXPECT_THAT(to_text(cut), HasSubstr("the bus in a micro-batch"));
}

TEST(Planner, TextSaysUnitsAndStagesAndVerdict) {
  const std::string text = to_text(make_plan(request_for(13 * kBillion, 8, "24GB")));
  for (const char* part :
       {"13,000,000,000 parameters", "2 + 2 + 12 bytes", "GB = 10^9", "ZeRO-3",
        "No stage fits 24.00 GB on 8 ranks", "k* = ", "break-even batch", "tensor parallelism"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Planner, TablesHoldTheFiguresOfThePlan) {
  const std::string text = to_text(make_plan(request_for(13 * kBillion, 8, "24GB")));
  EXPECT_THAT(text, ContainsRegex("ZeRO-3 +3.25 +3.25 +19.50 +26.00 +1.17 +13.64 +40.81  no\n"));
  EXPECT_THAT(text, ContainsRegex("ZeRO-3 \\+ offload +3.25 +3.25 +0.00 .*  yes\n"));
  EXPECT_THAT(text, ContainsRegex("DDP +45.50 +1.750 +1.065 +0.456 +0.011 +1.076 +9\n"));
}

}  // namespace
}  // namespace zero::plan

#include "check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

using ladder::LadderReport;
using ladder::ModeRow;
using ladder::RankRow;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;

// A mode that measured what the formulas say, and took 4 s to compute, 1 s for all of AdamW and 2 s
// to send one V.
ModeRow exact(const std::string& mode, const Model& model, Stage stage, double sent_in_v) {
  ModeRow row;
  row.mode = mode;
  const States states = model_states(model.parameters, fp32(), stage, kRanks);
  const double copy = static_cast<double>(model.parameters * 4);
  for (int rank = 0; rank < kRanks; ++rank) {
    RankRow r;
    r.rank = rank;
    r.parameter_mib = static_cast<double>(states.parameters) / kMiB;
    r.gradient_mib = static_cast<double>(states.gradients) / kMiB;
    r.optimizer_mib = static_cast<double>(states.optimizer) / kMiB;
    r.peak_mib = static_cast<double>(states.total()) / kMiB;
    r.sent_gradient_bytes = std::llround(sent_in_v * copy);
    r.sent_control_bytes = 1200;
    r.forward_seconds = 1;
    r.backward_seconds = 3;
    r.optimizer_seconds = stage == Stage::kDdp ? 1 : 0.5;
    r.communication_seconds = 2 * sent_in_v;
    r.step_seconds = 4 + r.optimizer_seconds + r.communication_seconds;
    row.ranks.push_back(r);
  }
  return row;
}

LadderReport exact_report() {
  const Model model = model_of(nn::preset("tiny"), "tiny");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  LadderReport report;
  report.world_size = kRanks;
  report.model = "tiny";
  report.parameters = model.parameters;
  report.parameter_bytes = 4 * model.parameters;
  report.task = "text";
  report.dtype = "fp32";
  report.optimizer = "AdamW";
  report.batch_size = 1;
  report.sequence_length = 128;
  report.modes = {exact("ddp", model, Stage::kDdp, 1),
                  exact("zero1", model, Stage::kZero1, 1),
                  exact("zero1:naive", model, Stage::kZero1, 1.5),
                  exact("zero2", model, Stage::kZero2, 1),
                  exact("zero3", model, Stage::kZero3, (3 - kept) / 2),
                  exact("zero3:whole", model, Stage::kZero3, 1)};
  return report;
}

TEST(Check, WhatIsMeasuredAsPredictedPasses) {
  const Check check = check_against(exact_report());
  EXPECT_THAT(check.failures, IsEmpty());
  EXPECT_THAT(check.notes, IsEmpty());
  ASSERT_EQ(check.modes.size(), 6U);
  for (const ModeCheck& mode : check.modes) {
    EXPECT_NEAR(mode.states.error(), 0, 1e-9) << mode.mode;
    EXPECT_NEAR(mode.sent->error(), 0, 1e-5) << mode.mode;
    EXPECT_NEAR(mode.step->error(), 0, 1e-5) << mode.mode;
    EXPECT_EQ(mode.calibrates, mode.mode == "ddp");
  }
}

TEST(Check, SpeedsComeFromDdp) {
  const Check check = check_against(exact_report());
  ASSERT_TRUE(check.machine.has_value());
  const double parameters = static_cast<double>(exact_report().parameters);
  EXPECT_NEAR(check.machine->flops, 6 * parameters * 128 / 4, 1);
  EXPECT_NEAR(check.machine->bandwidth, 4 * parameters / 2, 1);
  EXPECT_NEAR(check.optimizer_elements_per_second, parameters, 1);
}

TEST(Check, AnErrorOfAStepIsShownAndDoesNotFail) {
  LadderReport report = exact_report();
  for (RankRow& rank : report.modes[4].ranks) rank.step_seconds *= 2;
  const Check check = check_against(report);
  EXPECT_NEAR(check.modes[4].step->error(), -0.5, 1e-5);
  EXPECT_THAT(check.failures, IsEmpty());
  EXPECT_THAT(to_text(check), HasSubstr("-50.0"));
}

TEST(Check, BytesThatAreNotAsPredictedFail) {
  LadderReport memory = exact_report();
  memory.modes[1].ranks[0].optimizer_mib *= 1.01;
  EXPECT_THAT(check_against(memory).failures, ElementsAre(HasSubstr("zero1: ")));

  LadderReport traffic = exact_report();
  traffic.modes[3].ranks[1].sent_parameter_bytes += 100;
  EXPECT_THAT(check_against(traffic).failures, ElementsAre(HasSubstr("zero2: ")));

  LadderReport peak = exact_report();
  for (RankRow& rank : peak.modes[0].ranks) rank.peak_mib = 100;
  EXPECT_THAT(check_against(peak).failures, ElementsAre(HasSubstr("above its bound")));
}

TEST(Check, ModesThatNobodyKnowsAreSaid) {
  LadderReport report = exact_report();
  report.modes[2].mode = "zero7";
  const Check check = check_against(report);
  EXPECT_EQ(check.modes.size(), 5U);
  EXPECT_THAT(check.notes, Contains(HasSubstr("zero7")));
}

TEST(Check, WithoutDdpTimesAreNotPredicted) {
  LadderReport report = exact_report();
  report.modes.erase(report.modes.begin());
  const Check check = check_against(report);
  EXPECT_FALSE(check.machine.has_value());
  EXPECT_FALSE(check.modes[0].step.has_value());
  EXPECT_THAT(check.notes, Contains(HasSubstr("without mode ddp")));
}

TEST(Check, AModelThatIsNoPresetHasToBeGivenForItsUnits) {
  LadderReport report = exact_report();
  report.model = "my-weights";
  const Check guessed = check_against(report);
  EXPECT_FALSE(guessed.modes[4].sent.has_value());
  EXPECT_TRUE(guessed.modes[3].sent.has_value());
  const Check given = check_against(report, model_of(nn::preset("tiny"), "tiny"));
  EXPECT_TRUE(given.modes[4].sent.has_value());
  EXPECT_THAT(given.failures, IsEmpty());
}

TEST(Check, WhatCannotBeComparedIsRefused) {
  LadderReport other = exact_report();
  other.parameters += 1;
  EXPECT_THROW(check_against(other), Error);
  LadderReport half = exact_report();
  half.dtype = "bf16";
  EXPECT_THROW(check_against(half), Error);
  LadderReport empty = exact_report();
  empty.modes.clear();
  EXPECT_THROW(check_against(empty), Error);
}

TEST(Check, NumbersThatNoRunHasAreRefused) {
  const auto refused = [](auto change, const char* message) {
    LadderReport report = exact_report();
    change(report);
    try {
      check_against(report);
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  refused([](LadderReport& r) { r.world_size = 2'000'000'000; }, "the world size is 2000000000");
  refused([](LadderReport& r) { r.world_size = 0; }, "the world size is 0");
  refused([](LadderReport& r) { r.batch_size = std::int64_t{1} << 62; }, "the batch is 46116860");
  refused([](LadderReport& r) { r.sequence_length = kLongestSequence + 1; }, "the sequence is ");
}

// Placeholders are a copy of the largest tensor for every rank: 10^15 x 4 bytes x 10^6 here.
TEST(Check, BoundsOfPeaksMayBeBeyond63Bits) {
  LadderReport report = exact_report();
  report.model = "one-layer";
  report.parameters = nn::kMostParameters;
  report.world_size = static_cast<int>(kLargestWorldSize);
  report.modes = {report.modes[3]};
  report.modes[0].mode = "zero2:placeholder";
  const Check check = check_against(report, model_of_size(nn::kMostParameters, 1));
  EXPECT_GT(check.modes.at(0).peak.predicted, 4e21 / static_cast<double>(kMiB));
}

TEST(Check, JsonHasPredictionMeasurementAndError) {
  const base::Json json = to_json(check_against(exact_report()));
  EXPECT_EQ(json["modes"].size(), 6U);
  for (const char* key : {"model_states_mib", "sent_bytes", "step_seconds", "peak_bound_mib"}) {
    EXPECT_TRUE(json["modes"][0][key].contains("predicted")) << key;
    EXPECT_TRUE(json["modes"][0][key].contains("measured")) << key;
    EXPECT_TRUE(json["modes"][0][key].contains("error")) << key;
  }
  EXPECT_THAT(json["failures"], IsEmpty());
}

}  // namespace
}  // namespace zero::plan

// What one rank of a fake process group measured: the table, the JSON, and what makes it a failure.
#include "fake_process_group_report.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

#include <zero/base/error.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

FakeProcessGroupReport sample() {
  FakeProcessGroupReport report;
  report.world_size = 512;
  report.rank = 7;
  report.model = "some-model";
  report.parameters = 25'600'000;
  report.parameter_bytes = 102'400'000;
  report.task = "text";
  report.dtype = "fp32";
  report.optimizer = "AdamW";
  report.steps = 2;
  FakeProcessGroupRow row;
  row.mode = "tensor_zero3";
  row.measured = row.formula = {200'192, 200'192, 400'000};
  row.planned = 800'000;
  row.other = 1000;
  row.sent = row.formula_sent = 307'000'000;
  row.losses = {5.5, 5.25};
  row.every_piece_changed = true;
  report.rows.push_back(row);
  return report;
}

TEST(FakeProcessGroupReport, AllIsWellWhereHeldIsWhatTheFormulaSays) {
  EXPECT_THAT(verdict(sample()), IsEmpty());
}

TEST(FakeProcessGroupReport, ARankThatOwnsNothingIsRight) {
  FakeProcessGroupReport report = sample();
  report.rows[0].measured = report.rows[0].formula = {};
  EXPECT_THAT(verdict(report), IsEmpty());
}

struct FakeProcessGroupFault {
  const char* name;
  std::function<void(FakeProcessGroupRow&)> inject;
  const char* message;
};

void PrintTo(const FakeProcessGroupFault& fault, std::ostream* out) { *out << fault.name; }

class FakeProcessGroupVerdict : public ::testing::TestWithParam<FakeProcessGroupFault> {};

TEST_P(FakeProcessGroupVerdict, NamesTheFault) {
  FakeProcessGroupReport report = sample();
  GetParam().inject(report.rows[0]);
  const std::vector<std::string> failures = verdict(report);
  ASSERT_THAT(failures, ::testing::Not(IsEmpty()));
  EXPECT_THAT(failures.front(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FakeProcessGroupVerdict,
    ::testing::Values(
        FakeProcessGroupFault{
            "TooManyParameters",
            [](FakeProcessGroupRow& row) {
              row.measured.parameters += row.formula.parameters / 900;
            },
            "tensor_zero3, parameters: 200414 bytes are held, the formula says 200192"},
        FakeProcessGroupFault{
            "TooFewGradients",
            [](FakeProcessGroupRow& row) { row.measured.gradients -= row.formula.gradients / 900; },
            "tensor_zero3, gradients: 199970 bytes are held, the formula says 200192"},
        FakeProcessGroupFault{"WholeMoments",
                              [](FakeProcessGroupRow& row) { row.measured.optimizer *= 512; },
                              "tensor_zero3, optimizer:"},
        FakeProcessGroupFault{"SomethingWhereNothingShouldBe",
                              [](FakeProcessGroupRow& row) {
                                row.measured = {4, 0, 0};
                                row.formula = {};
                              },
                              "parameters: 4 bytes are held, the formula says 0"},
        FakeProcessGroupFault{"MoreBesides", [](FakeProcessGroupRow& row) { row.other = 3 << 20; },
                              "3.00 MiB are alive that are no model states"},
        FakeProcessGroupFault{"OneByteMoreSent", [](FakeProcessGroupRow& row) { ++row.sent; },
                              "307000001 bytes of gradients and parameters would be sent"},
        FakeProcessGroupFault{"LossIsNotANumber",
                              [](FakeProcessGroupRow& row) { row.losses[1] = std::nan(""); },
                              "a loss is missing or not finite"},
        FakeProcessGroupFault{"NoLoss", [](FakeProcessGroupRow& row) { row.losses.clear(); },
                              "a loss is missing"},
        FakeProcessGroupFault{"NothingTrained",
                              [](FakeProcessGroupRow& row) { row.every_piece_changed = false; },
                              "still has its first value"}),
    [](const auto& info) { return info.param.name; });

TEST(FakeProcessGroupReport, NoModeIsAFailure) {
  EXPECT_THAT(verdict(FakeProcessGroupReport()), ::testing::ElementsAre("no mode ran"));
}

TEST(FakeProcessGroupReport, DifferencesAreRelativeAndNeverHiddenByAZero) {
  EXPECT_DOUBLE_EQ(relative_difference(101, 100), 0.01);
  EXPECT_DOUBLE_EQ(relative_difference(99, 100), -0.01);
  EXPECT_EQ(relative_difference(0, 0), 0);
  EXPECT_EQ(relative_difference(1, 0), std::numeric_limits<double>::infinity());
}

TEST(FakeProcessGroupReport, TextSaysWhoseFiguresTheseAreAndThatWeightsAreNotCompared) {
  const std::string text = to_text(sample());
  EXPECT_THAT(text, HasSubstr("rank 7 of 512 in a fake process group"));
  EXPECT_THAT(text, HasSubstr("weights are not compared (n/a)"));
  EXPECT_THAT(text, HasSubstr("n/a    n/a"));
  // 800,384 bytes beside 800,000 without padding.
  EXPECT_THAT(text, HasSubstr("0.048"));
  EXPECT_THAT(text, HasSubstr("2.9980"));
}

TEST(FakeProcessGroupReport, JsonSaysThatItIsAFakeProcessGroupAndIsNoReportOfALadder) {
  const base::Json json = to_json(sample());
  EXPECT_EQ(json.at("fake_process_group").at("size"), 512);
  EXPECT_EQ(json.at("fake_process_group").at("rank"), 7);
  const base::Json& row = json.at("modes").at(0);
  EXPECT_EQ(row.at("measured").at("total_bytes"), 800'384);
  EXPECT_EQ(row.at("formula").at("gradient_bytes"), 200'192);
  EXPECT_EQ(row.at("planned_bytes"), 800'000);
  EXPECT_TRUE(row.at("digest").is_null());
  EXPECT_TRUE(row.at("identical_to_ddp").is_null());
  try {
    report_from_json(json);
    ADD_FAILURE() << "taken for a ladder";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 7 of a fake process group of 512"));
  }
}

TEST(FakeProcessGroupReport, ARowComesBackFromJson) {
  FakeProcessGroupRow row = sample().rows[0];
  row.peak = 123;
  row.resident_growth = 45;
  row.step_seconds = 1.5;
  row.source_seconds = 0.5;
  const base::Json json = to_json(row);
  EXPECT_EQ(to_json(fake_row_from_json(json)), json);
  row.planned.reset();
  EXPECT_FALSE(fake_row_from_json(to_json(row)).planned.has_value());
  row.losses = {std::nan("")};
  const FakeProcessGroupRow back = fake_row_from_json(base::Json::parse(to_json(row).dump()));
  EXPECT_TRUE(std::isnan(back.losses.at(0)));
}

}  // namespace
}  // namespace zero::ladder

#include "ladder_report.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <tests/support/ladder_sample.hpp>
#include <tests/support/python.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/table.hpp>

namespace zero::ladder {
namespace {

TEST(LadderReport, DerivesMeansMaximaAndRatios) {
  const LadderReport report = testing::ladder_sample();
  ModeRow mode{.mode = "x"};
  mode.ranks = {{.parameter_mib = 1, .sent_gradient_bytes = 10, .sent_parameter_bytes = 1},
                {.parameter_mib = 3, .sent_gradient_bytes = 20, .sent_control_bytes = 9}};
  EXPECT_EQ(spread(mode, &RankRow::parameter_mib).mean, 2);
  EXPECT_EQ(spread(mode, &RankRow::parameter_mib).max, 3);
  EXPECT_EQ(spread(mode, &RankRow::sent_gradient_bytes).mean, 15);
  EXPECT_EQ(sent_bytes(mode).mean, 20);
  EXPECT_EQ(sent_bytes(mode).max, 29);

  EXPECT_EQ(ratio(report, report.modes[0]), 1.0);
  EXPECT_NEAR(*ratio(report, report.modes[1]), 0.75, 1e-5);
  EXPECT_NEAR(*ratio(report, report.modes[2]), 0.625, 1e-5);
  EXPECT_NEAR(*ratio(report, report.modes[3]), 0.5, 1e-5);
}

TEST(LadderReport, ComparesWithDdpOnlyIfItRan) {
  LadderReport report = testing::ladder_sample();
  EXPECT_EQ(identical_to_ddp(report, report.modes[3]), true);
  report.modes[3].ranks[1].digest[0] = 'b';
  EXPECT_EQ(identical_to_ddp(report, report.modes[3]), false);
  report.modes.erase(report.modes.begin());
  EXPECT_EQ(identical_to_ddp(report, report.modes[0]), std::nullopt);
  EXPECT_EQ(ratio(report, report.modes[0]), std::nullopt);
  EXPECT_EQ(ddp_row(report), nullptr);
}

TEST(LadderVerdict, PassesAGoodRun) {
  const std::vector<std::string> failures = verdict(testing::ladder_sample());
  EXPECT_TRUE(failures.empty()) << failures.front();
}

void scale_formula(ModeRow& mode, double factor) {
  for (RankRow& rank : mode.ranks) rank.formula_mib *= factor;
}

TEST(LadderVerdict, NamesTheFault) {
  const auto expect = [](const std::function<void(LadderReport&)>& inject,
                         const std::string& message) {
    LadderReport report = testing::ladder_sample();
    inject(report);
    const std::vector<std::string> failures = verdict(report);
    ASSERT_FALSE(failures.empty()) << message;
    EXPECT_NE(failures.front().find(message), std::string::npos) << failures.front();
  };
  expect(
      [](LadderReport& r) {
        for (RankRow& rank : r.modes[2].ranks) rank.digest = std::string(64, 'b');
      },
      "zero2: weights differ from ddp's (digest bbbbbbbbbbbb, not aaaaaaaaaaaa)");
  expect([](LadderReport& r) { r.modes[0].ranks[1].digest = "c0ffee"; },
         "ddp: rank 1 has other weights than rank 0 (digest c0ffee, not aaaaaaaaaaaa)");
  expect([](LadderReport& r) { r.modes[1].ranks[0].digest.clear(); },
         "zero1: rank 0 reported no digest");
  expect([](LadderReport& r) { scale_formula(r.modes[1], 1 - 0.0011); },
         "zero1: model states of 4140.71 MiB are 0.110 % off the formula's 4136.16 MiB");
  expect([](LadderReport& r) { scale_formula(r.modes[3], 1.0012); },
         "zero3: model states of 2760.48 MiB are -0.120 % off");
  expect(
      [](LadderReport& r) {
        r.modes[2].ranks[0].formula_mib -= 1;
        r.modes[2].ranks[1].formula_mib += 5;
      },
      "zero2, rank 1: model states of");
  expect([](LadderReport& r) { scale_formula(r.modes[0], 0); }, "ddp: no total to compare");
  expect([](LadderReport& r) { r.modes[0].ranks[0].total_mib = std::nan(""); },
         "ddp: no total to compare");
  expect([](LadderReport& r) { r.modes[3].every_tensor_changed = false; },
         "zero3: a trainable tensor still has its first value");
  expect([](LadderReport& r) { r.modes[0].batches_differed = false; },
         "ddp: two ranks trained on the same batch");
  expect([](LadderReport& r) { r.modes[0].gradients_differed = false; },
         "ddp: two ranks had the same gradients");
  expect([](LadderReport& r) { r.modes[2].ranks.pop_back(); }, "zero2: 1 of 2 ranks reported");
  expect([](LadderReport& r) { r.modes[1].losses[1] = std::numeric_limits<double>::infinity(); },
         "zero1: a loss is missing or not finite");
  expect([](LadderReport& r) { r.modes.clear(); }, "no mode ran");
}

TEST(LadderVerdict, AllowsOneRankToHaveOneBatch) {
  LadderReport report = testing::ladder_sample();
  report.world_size = 1;
  for (ModeRow& mode : report.modes) {
    mode.ranks.pop_back();
    mode.batches_differed = mode.gradients_differed = false;
  }
  EXPECT_TRUE(verdict(report).empty());
}

TEST(LadderVerdict, ToleratesWhatTheContractAllows) {
  LadderReport report = testing::ladder_sample();
  scale_formula(report.modes[1], 1 / 1.00099);
  EXPECT_TRUE(verdict(report).empty());
}

TEST(LadderTables, ShowTheFigures) {
  const std::string text = to_text(testing::ladder_sample(), /*wide=*/true);
  for (const char* figure : {"smollm2-360m: 361,821,120 parameters, 2 ranks", "1380.24", "2760.48",
                             "5520.98", "0.750", "0.625", "0.500", "4140.75", "10.8312", "10.6008",
                             "aaaaaaaaaaaa", "yes", "1.4000", "V = 1380.24 MiB"}) {
    EXPECT_NE(text.find(figure), std::string::npos) << figure << " is missing in\n" << text;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 140u) << line;
}

TEST(LadderTables, FitATerminal) {
  const std::string text = to_text(testing::ladder_sample());
  for (const char* part :
       {"\nmode   parameters  gradients  optimizer    total  ratio    sent  same weights\n",
        "\nzero3      690.12     690.12    1380.24  2760.51  0.500  1.4000  yes\n",
        "V = 1380.24 MiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  std::istringstream lines(text.substr(text.find('\n')));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(LadderTables, ShowWhatWasWaitedForBesideWhatWasUnderWay) {
  std::istringstream lines(to_text(testing::ladder_sample(), /*wide=*/true));
  std::string line;
  while (std::getline(lines, line) && line.find("in flight") == std::string::npos) {
  }
  const std::size_t in_flight = line.find("in flight") + 9, exposed = line.find("exposed") + 7;
  ASSERT_LT(exposed, line.size());
  std::getline(lines, line);  // units
  std::getline(lines, line);  // a rule
  std::getline(lines, line);
  EXPECT_EQ(line.substr(in_flight - 6, 6), " 2.750") << line;
  EXPECT_EQ(line.substr(exposed - 6, 6), " 1.250") << line;
}

TEST(LadderTables, ShowTheAxesOfAMesh) {
  LadderReport report = testing::ladder_sample();
  EXPECT_EQ(to_text(report, /*wide=*/true).find("axis"), std::string::npos);
  report.world_size = 8;
  report.stages = report.tensor_ranks = 2;
  report.pipeline_schedule = "1f1b";
  report.micro_batches = 4;
  for (RankRow& rank : report.modes[2].ranks) {
    rank.sent_data_bytes = report.parameter_bytes / 2;
    rank.sent_pipeline_bytes = report.parameter_bytes * (rank.rank + 1) / 4;
    rank.sent_tensor_bytes = report.parameter_bytes * 2;
  }
  const std::string wide = to_text(report, /*wide=*/true);
  for (const char* part : {"8 ranks (data 2 x pipeline 2 x tensor 2)", ", 1f1b\n",
                           "4 micro-batches of 1 x 128 tokens a rank", "sent: pipeline axis",
                           "about 1/4 of the model", "over 2 data ranks", "0.3750", "2.0000"}) {
    EXPECT_NE(wide.find(part), std::string::npos) << part << " is missing in\n" << wide;
  }
  std::istringstream lines(to_text(report));
  std::string line;
  std::getline(lines, line);  // the title
  while (std::getline(lines, line)) EXPECT_LE(line.size(), 100u) << line;
}

TEST(LadderVerdict, ARankMayOwnNothing) {
  LadderReport report = testing::ladder_sample();
  ModeRow& mode = report.modes[3];
  mode.ranks[1].total_mib = mode.ranks[1].other_mib;
  mode.ranks[1].formula_mib = 0;
  EXPECT_EQ(verdict(report), verdict(testing::ladder_sample()));
  mode.ranks[1].total_mib += 1;
  EXPECT_NE(verdict(report), verdict(testing::ladder_sample()));
}

TEST(LadderTables, ShowWhatIsWrong) {
  LadderReport report = testing::ladder_sample();
  report.modes[1].ranks[0].digest = "b";
  const std::string wide = to_text(report, /*wide=*/true);
  EXPECT_NE(wide.find("differs      NO"), std::string::npos) << wide;
  EXPECT_NE(to_text(report).find("  NO\n"), std::string::npos) << to_text(report);
  report.modes.erase(report.modes.begin());
  EXPECT_EQ(to_text(report).find(" yes"), std::string::npos) << to_text(report);
  EXPECT_NE(to_text(report).find("\"-\": ddp did not run"), std::string::npos) << to_text(report);
}

TEST(LadderVerdict, AsksNoModeThatRoundsForTheWeightsOfDdp) {
  LadderReport report = testing::ladder_sample();
  for (RankRow& rank : report.modes[2].ranks) rank.digest = std::string(64, 'b');
  report.modes[2].rounds = true;
  EXPECT_TRUE(verdict(report).empty());
  EXPECT_EQ(identical_to_ddp(report, report.modes[2]), std::nullopt);
  EXPECT_NE(to_text(report).find("  rounded\n"), std::string::npos) << to_text(report);
  EXPECT_NE(to_text(report).find("\"rounded\": the mode"), std::string::npos) << to_text(report);
  report.modes[2].ranks[1].digest = std::string(64, 'c');
  EXPECT_EQ(verdict(report).size(), 1U) << "ranks must still agree with each other";
}

TEST(LadderTables, RelateTheStepToComputeIfItIsKnown) {
  LadderReport report = testing::ladder_sample();
  EXPECT_EQ(to_text(report, /*wide=*/true).find("/compute"), std::string::npos);
  report.compute_seconds = 5.2;
  const std::string text = to_text(report, /*wide=*/true);
  EXPECT_NE(text.find("/compute"), std::string::npos);
  EXPECT_NE(text.find(" 1.25 "), std::string::npos) << text;
}

TEST(LadderJson, HasTheKeysThatReadersRelyOn) {
  const base::Json json = to_json(testing::ladder_sample());
  EXPECT_EQ(json.at("world_size"), 2);
  EXPECT_EQ(json.at("model"), "smollm2-360m");
  EXPECT_EQ(json.at("parameters"), 361821120);
  EXPECT_EQ(json.at("mesh"), (base::Json{{"data", 2}, {"pipeline", 1}, {"tensor", 1}}));
  EXPECT_EQ(json.at("micro_batches"), 1);
  EXPECT_EQ(json.at("pipeline_schedule"), nullptr);
  const base::Json& zero3 = json.at("modes").at(3);
  EXPECT_EQ(zero3.at("mode"), "zero3");
  EXPECT_NEAR(zero3.at("parameter_mib").get<double>(), 690.12, 0.01);
  EXPECT_NEAR(zero3.at("parameter_mib_max").get<double>(), 690.26, 0.01);
  EXPECT_NEAR(zero3.at("gradient_mib").get<double>(), 690.12, 0.01);
  EXPECT_NEAR(zero3.at("optimizer_mib").get<double>(), 1380.24, 0.01);
  EXPECT_NEAR(zero3.at("total_mib").get<double>(), 2760.51, 0.01);
  EXPECT_NEAR(zero3.at("ratio").get<double>(), 0.5, 1e-5);
  EXPECT_NEAR(zero3.at("formula_mib").get<double>(), 2760.48, 0.01);
  EXPECT_NEAR(zero3.at("formula_difference").get<double>(), 1.13e-5, 1e-6);
  EXPECT_GT(zero3.at("peak_mib").get<double>(), 3500);
  EXPECT_NEAR(zero3.at("peak_states_mib").get<double>(), 2860.51, 0.01);
  EXPECT_EQ(zero3.at("sent_bytes_per_rank").get<double>(),
            sent_bytes(testing::ladder_sample().modes[3]).mean);
  EXPECT_NEAR(zero3.at("sent_in_v").get<double>(), 1.4, 1e-5);
  EXPECT_EQ(zero3.at("step_seconds"), 6.5);
  EXPECT_EQ(zero3.at("in_flight_seconds"), 2.75);
  EXPECT_EQ(zero3.at("loss_first"), 10.8312);
  EXPECT_EQ(zero3.at("loss_last"), 10.6008);
  EXPECT_EQ(zero3.at("identical_to_ddp"), true);
  EXPECT_EQ(zero3.at("ranks").size(), 2u);
  EXPECT_EQ(zero3.at("ranks").at(1).at("rank"), 1);
}

TEST(LadderJson, HasNullWhereNothingIsKnown) {
  LadderReport report = testing::ladder_sample();
  report.modes.erase(report.modes.begin());
  const base::Json json = to_json(report);
  EXPECT_TRUE(json.at("compute_seconds").is_null());
  EXPECT_TRUE(json.at("modes").at(0).at("identical_to_ddp").is_null());
  EXPECT_TRUE(json.at("modes").at(0).at("ratio").is_null());
}

TEST(LadderJson, RanksComeBackUnchanged) {
  for (const ModeRow& mode : testing::ladder_sample().modes) {
    const std::string written = base::Json(mode.ranks).dump();
    const auto back = base::Json::parse(written).get<std::vector<RankRow>>();
    EXPECT_EQ(back.size(), 2U);
    EXPECT_EQ(base::Json(back).dump(), written);
  }
}

// One rank of 512: it has a formula, and there is nothing to compare its weights with.
TEST(LadderReport, OfAFakeProcessGroup) {
  LadderReport report = testing::ladder_sample();
  report.world_size = 512;
  report.fake_rank = 7;
  for (ModeRow& mode : report.modes) {
    mode.ranks = {mode.ranks[1]};
    mode.ranks[0].digest = "";
  }
  EXPECT_EQ(verdict(report), std::vector<std::string>{});
  EXPECT_NE(to_text(report, /*wide=*/true).find("n/a    n/a"), std::string::npos);
  EXPECT_NE(to_text(report).find("  n/a\n"), std::string::npos) << to_text(report);
  EXPECT_TRUE(to_json(report).at("modes").at(0).at("identical_to_ddp").is_null());
  report.modes[2].ranks[0].total_mib *= 1.002;
  report.modes[3].every_tensor_changed = false;
  EXPECT_EQ(verdict(report).size(), 3U);  // zero2, its only rank, and zero3
  report.modes[0].ranks.clear();
  EXPECT_EQ(verdict(report).front(), "ddp: 0 of 1 ranks reported");
}

// The script reads keys by name: this fails if either side renames one.
TEST(LadderJson, CanBePlotted) {
  if (!testing::python_has({"matplotlib"}))
    GTEST_SKIP() << testing::python() << " has no matplotlib";
  const testing::TestFolder folder;
  base::write_json(folder / "ladder.json", to_json(testing::ladder_sample()));
  const testing::ProcessResult ended =
      testing::run_python("tools/plots/plot_ladder.py '" + (folder / "ladder.json").string() + "'");
  ASSERT_EQ(ended.code, 0) << ended.said;
  EXPECT_GT(std::filesystem::file_size(folder / "ladder.png"), 10'000u);
  EXPECT_GT(std::filesystem::file_size(folder / "ladder.svg"), 10'000u);
}

TEST(LadderJson, LearningCurvesCanBePlotted) {
  if (!testing::python_has({"matplotlib"}))
    GTEST_SKIP() << testing::python() << " has no matplotlib";
  const testing::TestFolder folder;
  LadderReport report = testing::ladder_sample();
  const std::string command =
      "tools/plots/plot_losses.py '" + (folder / "ladder.json").string() + "'";
  for (ModeRow& mode : report.modes) mode.losses = {5, 4, 3};
  base::write_json(folder / "ladder.json", to_json(report));
  const testing::ProcessResult ended = testing::run_python(command);
  ASSERT_EQ(ended.code, 0) << ended.said;
  EXPECT_GT(std::filesystem::file_size(folder / "ladder.png"), 10'000u);
  report.modes[1].losses = {5};
  base::write_json(folder / "ladder.json", to_json(report));
  const testing::ProcessResult refused = testing::run_python(command);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.said.find("mode 1 has 1 losses"), std::string::npos) << refused.said;
}

}  // namespace
}  // namespace zero::ladder

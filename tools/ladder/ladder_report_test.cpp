#include "ladder_report.hpp"

#include <gmock/gmock.h>

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

namespace zero::ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tools::Json;

// The sample after `change`.
Json sample(const std::function<void(Json& report)>& change) {
  Json report = testing::ladder_sample();
  change(report);
  derive(report);
  return report;
}

// The sample after `change` of the modes.
Json sample_modes(const std::function<void(Json& modes)>& change) {
  return sample([&](Json& report) { change(report["modes"]); });
}

void set_all(Json& mode, const char* key, const Json& value) {
  for (Json& rank : mode["ranks"]) rank[key] = value;
}

void scale_formula(Json& mode, double factor) {
  for (Json& rank : mode["ranks"]) rank["formula_mib"] = number_in(rank, "formula_mib") * factor;
}

TEST(LadderReport, DerivesMeansMaximaAndRatios) {
  const Json report = sample_modes([](Json& modes) {
    modes[1]["ranks"][0]["parameter_mib"] = 1;
    modes[1]["ranks"][1]["parameter_mib"] = 3;
    modes[1]["ranks"][0]["sent_bytes"] = 11;
    modes[1]["ranks"][1]["sent_bytes"] = 29;
  });
  const Json& zero1 = report["modes"][1];
  EXPECT_EQ(zero1["parameter_mib"], 2);
  EXPECT_EQ(zero1["parameter_mib_max"], 3);
  EXPECT_EQ(zero1["sent_bytes_per_rank"], 20);
  EXPECT_EQ(zero1["sent_bytes_per_rank_max"], 29);
  EXPECT_EQ(zero1["sent_in_v"], 20 / number_in(report, "parameter_bytes"));
  EXPECT_FALSE(zero1.contains("sent_bytes"));
  EXPECT_EQ(report["modes"][0]["ratio"], 1);
  EXPECT_NEAR(number_in(report["modes"][1], "ratio"), 0.75, 1e-5);
  EXPECT_NEAR(number_in(report["modes"][2], "ratio"), 0.625, 1e-5);
  EXPECT_NEAR(number_in(report["modes"][3], "ratio"), 0.5, 1e-5);
  EXPECT_NEAR(number_in(report["modes"][3], "formula_difference"), 1.13e-5, 1e-6);
}

TEST(LadderReport, ComparesWithDdpOnlyIfItRan) {
  EXPECT_EQ(testing::ladder_sample()["modes"][3]["identical_to_ddp"], true);
  const Json other =
      sample_modes([](Json& modes) { modes[3]["ranks"][1]["digest"] = std::string(64, 'b'); });
  EXPECT_EQ(other["modes"][3]["identical_to_ddp"], false);
  EXPECT_EQ(other["modes"][3]["digest"], nullptr);
  const Json without = sample_modes([](Json& modes) { modes.erase(0); });
  EXPECT_EQ(without["modes"][0]["identical_to_ddp"], nullptr);
  EXPECT_EQ(without["modes"][0]["ratio"], nullptr);
  const Json mesh = sample_modes([](Json& modes) { modes[0]["mode"] = "hddp:shard_size=2"; });
  EXPECT_EQ(mesh["modes"][3]["identical_to_ddp"], true);
}

// Ranks of the tensor and the pipeline axis have the same batch.
TEST(LadderReport, ComparesBatchesOfADataAxis) {
  Json results;
  for (const int rank : {0, 1, 2, 3}) {
    results.push_back({{"row", {{"rank", rank}}},
                       {"losses", {1.0}},
                       {"every_tensor_changed", rank != 2},
                       {"batch_digest", std::to_string(rank / 2)},
                       {"gradient_digest", "same"}});
  }
  const Json on_a_mesh = mode_row("ddp", /*rounds=*/false, results, /*cell=*/2);
  EXPECT_EQ(on_a_mesh["batches_differed"], true);
  EXPECT_EQ(on_a_mesh["gradients_differed"], false);
  EXPECT_EQ(on_a_mesh["every_tensor_changed"], false);
  EXPECT_EQ(mode_row("ddp", false, results, /*cell=*/1)["batches_differed"], false);
}

TEST(LadderVerdict, PassesAGoodRun) { EXPECT_THAT(verdict(testing::ladder_sample()), IsEmpty()); }

TEST(LadderVerdict, NamesTheFault) {
  const auto expect = [](const std::function<void(Json & modes)>& change, const char* message) {
    const std::vector<std::string> failures = verdict(sample_modes(change));
    ASSERT_FALSE(failures.empty()) << message;
    EXPECT_THAT(failures.front(), HasSubstr(message));
  };
  expect([](Json& modes) { set_all(modes[2], "digest", std::string(64, 'b')); },
         "zero2: weights differ from ddp's");
  expect([](Json& modes) { modes[0]["ranks"][1]["digest"] = "c0ffee"; },
         "ddp: rank 1 has other weights than rank 0");
  expect([](Json& modes) { scale_formula(modes[1], 1 - 0.0011); },
         "zero1: model states of 4140.71 MiB are 0.110 % off the formula's 4136.16 MiB");
  expect([](Json& modes) { scale_formula(modes[3], 1.0012); },
         "zero3: model states of 2760.48 MiB are -0.120 % off");
  expect(
      [](Json& modes) {
        Json& ranks = modes[2]["ranks"];
        ranks[0]["formula_mib"] = number_in(ranks[0], "formula_mib") - 1;
        ranks[1]["formula_mib"] = number_in(ranks[1], "formula_mib") + 5;
      },
      "zero2: rank 1: model states of");
  expect([](Json& modes) { scale_formula(modes[0], 0); }, "ddp: model states of");
  expect([](Json& modes) { modes[0]["ranks"][0]["total_mib"] = nullptr; }, "ddp: model states of");
  expect([](Json& modes) { set_all(modes[1], "other_mib", 1.1); }, "zero1: 1.10 MiB are alive");
  expect([](Json& modes) { modes[1]["ranks"][1]["sent_data_bytes"] = 12; },
         "zero1: rank 1 sent 12 bytes on the data axis in a step, the formula says 1447284480");
  expect([](Json& modes) { modes[1]["ranks"][0]["sent_pipeline_bytes"] = 1; },
         "zero1: rank 0 sent 1 bytes on the pipeline axis in a step, the formula says 0");
  expect([](Json& modes) { modes[3]["every_tensor_changed"] = false; },
         "zero3: a trainable tensor still has its first value");
  expect([](Json& modes) { modes[0]["batches_differed"] = false; },
         "ddp: two ranks trained on the same batch");
  expect([](Json& modes) { modes[0]["gradients_differed"] = false; },
         "ddp: two ranks had the same gradients");
  expect([](Json& modes) { modes[1]["losses"][1] = std::numeric_limits<double>::infinity(); },
         "zero1: a loss is not finite");
  expect([](Json& modes) { modes[1]["losses"][1] = nullptr; }, "zero1: a loss is not finite");
  expect([](Json& modes) { modes[3]["losses"][1] = std::nextafter(10.7201, 11); },
         "zero3: losses differ from ddp's");
}

TEST(LadderVerdict, ToleratesWhatTheContractAllows) {
  EXPECT_THAT(verdict(sample_modes([](Json& modes) { scale_formula(modes[1], 1 / 1.00099); })),
              IsEmpty());
  const Json groups = sample_modes([](Json& modes) {
    modes[1]["mode"] = "hsdp1:shard_size=2";
    set_all(modes[1], "other_mib", 1.45);
    for (Json& rank : modes[1]["ranks"]) rank["total_mib"] = number_in(rank, "formula_mib") + 1.45;
  });
  EXPECT_THAT(verdict(groups), IsEmpty());
}

TEST(LadderVerdict, ARankMayOwnNothing) {
  const auto rank_1_has = [](double mib_of_states) {
    return verdict(sample_modes([&](Json& modes) {
      Json& rank = modes[3]["ranks"][1];
      rank["total_mib"] = number_in(rank, "other_mib") + mib_of_states;
      rank["formula_mib"] = 0;
    }));
  };
  EXPECT_THAT(rank_1_has(0), IsEmpty());
  EXPECT_THAT(rank_1_has(1), Not(IsEmpty()));
}

TEST(LadderVerdict, AsksNoModeThatRoundsForTheWeightsOfDdp) {
  const auto with_digest_of_rank_1 = [](char letter) {
    return sample_modes([&](Json& modes) {
      set_all(modes[2], "digest", std::string(64, 'b'));
      modes[2]["ranks"][1]["digest"] = std::string(64, letter);
      modes[2]["rounds"] = true;
      modes[2]["losses"][1] = 10.5;
    });
  };
  const Json report = with_digest_of_rank_1('b');
  EXPECT_THAT(verdict(report), IsEmpty());
  EXPECT_EQ(report["modes"][2]["identical_to_ddp"], nullptr);
  EXPECT_THAT(to_text(report), HasSubstr("  rounded\n"));
  EXPECT_THAT(to_text(report), HasSubstr("\"rounded\": the mode"));
  EXPECT_EQ(verdict(with_digest_of_rank_1('c')).size(), 1U) << "ranks must agree with each other";
}

// No line below the title is longer.
void expect_lines_of_at_most(std::size_t columns, const std::string& text) {
  std::istringstream lines(text.substr(text.find('\n')));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line;
}

TEST(LadderTables, ShowTheFigures) {
  const std::string text = to_text(testing::ladder_sample(), /*wide=*/true);
  for (const char* figure : {"smollm2-360m: 361,821,120 parameters, 2 ranks", "1380.24", "2760.48",
                             "5520.98", "0.750", "0.625", "0.500", "4140.75", "10.8312", "10.6008",
                             "aaaaaaaaaaaa", "yes", "1.4000", "V = 1380.24 MiB"}) {
    EXPECT_THAT(text, HasSubstr(figure));
  }
  expect_lines_of_at_most(140, text);
}

TEST(LadderTables, FitATerminal) {
  const std::string text = to_text(testing::ladder_sample());
  for (const char* part :
       {"\nmode   parameters  gradients  optimizer    total  ratio    sent  same weights\n",
        "\nzero3      690.12     690.12    1380.24  2760.51  0.500  1.4000  yes\n",
        "V = 1380.24 MiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  expect_lines_of_at_most(100, text);
}

TEST(LadderTables, ShowTheAxesOfAMesh) {
  EXPECT_THAT(to_text(testing::ladder_sample(), /*wide=*/true), Not(HasSubstr("axis")));
  const Json report = sample([](Json& mesh) {
    mesh["world_size"] = 8;
    mesh["mesh"] = {{"data", 2}, {"pipeline", 2}, {"tensor", 2}};
    mesh["micro_batches"] = 4;
    const auto copy = mesh["parameter_bytes"].get<std::int64_t>();
    for (Json& rank : mesh["modes"][2]["ranks"]) {
      rank["sent_data_bytes"] = copy / 2;
      rank["sent_pipeline_bytes"] = copy * (rank["rank"].get<int>() + 1) / 4;
      rank["sent_tensor_bytes"] = copy * 2;
    }
  });
  const std::string wide = to_text(report, /*wide=*/true);
  for (const char* part :
       {"8 ranks (data 2 x pipeline 2 x tensor 2)", "4 micro-batches of 1 x 128 tokens a rank",
        "sent: pipeline axis", "about 1/4 of the model", "0.3750", "2.0000"}) {
    EXPECT_THAT(wide, HasSubstr(part));
  }
  expect_lines_of_at_most(100, to_text(report));
}

TEST(LadderTables, ShowWhatIsWrong) {
  const Json differs = sample_modes([](Json& modes) { modes[1]["ranks"][0]["digest"] = "b"; });
  EXPECT_THAT(to_text(differs, /*wide=*/true), HasSubstr("differs      NO"));
  EXPECT_THAT(to_text(differs), HasSubstr("  NO\n"));
  const std::string alone = to_text(sample_modes([](Json& modes) { modes.erase(0); }));
  EXPECT_THAT(alone, Not(HasSubstr(" yes")));
  EXPECT_THAT(alone, HasSubstr("\"-\": ddp did not run"));
}

TEST(LadderTables, RelateTheStepToComputeIfItIsKnown) {
  EXPECT_THAT(to_text(testing::ladder_sample(), /*wide=*/true), Not(HasSubstr("/compute")));
  const Json report = sample([](Json& known) { known["compute_seconds"] = 5.2; });
  EXPECT_THAT(to_text(report, /*wide=*/true), HasSubstr("/compute"));
  EXPECT_THAT(to_text(report, /*wide=*/true), HasSubstr(" 1.25 "));
}

// One rank of 512: it has a formula, and there is nothing to compare its weights with.
TEST(LadderReport, OfAFakeProcessGroup) {
  const auto make_fake = [](Json& report) {
    report["world_size"] = 512;
    report["mesh"]["data"] = 512;
    report["fake_process_group"] = {{"size", 512}, {"rank", 7}};
    for (Json& mode : report["modes"]) {
      mode["ranks"].erase(0);
      mode["ranks"][0]["digest"] = "";
    }
  };
  const Json report = sample(make_fake);
  EXPECT_THAT(verdict(report), IsEmpty());
  EXPECT_THAT(to_text(report, /*wide=*/true), HasSubstr("n/a    n/a"));
  EXPECT_THAT(to_text(report), HasSubstr("  n/a\n"));
  EXPECT_THAT(to_text(report), HasSubstr("rank 7 of 512 in a fake process group"));
  EXPECT_EQ(report["modes"][0]["identical_to_ddp"], nullptr);
  const Json wrong = sample([&](Json& fake) {
    make_fake(fake);
    Json& rank = fake["modes"][2]["ranks"][0];
    rank["total_mib"] = number_in(rank, "total_mib") * 1.002;
    fake["modes"][3]["every_tensor_changed"] = false;
  });
  EXPECT_EQ(verdict(wrong).size(), 3U);  // zero2, its only rank, and zero3
}

// The scripts read keys by name: this fails if either side renames one.
TEST(LadderJson, CanBePlotted) {
  if (!testing::python_has({"matplotlib"}))
    GTEST_SKIP() << testing::python() << " has no matplotlib";
  const testing::TestFolder folder;
  tools::write_json(folder / "ladder.json", testing::ladder_sample());
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
  Json report = testing::ladder_sample();
  const std::string command =
      "tools/plots/plot_losses.py '" + (folder / "ladder.json").string() + "'";
  tools::write_json(folder / "ladder.json", report);
  const testing::ProcessResult ended = testing::run_python(command);
  ASSERT_EQ(ended.code, 0) << ended.said;
  EXPECT_GT(std::filesystem::file_size(folder / "ladder.png"), 10'000u);
  report["modes"][1]["losses"] = {5};
  tools::write_json(folder / "ladder.json", report);
  const testing::ProcessResult refused = testing::run_python(command);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.said, HasSubstr("modes of equally many steps"));
}

}  // namespace
}  // namespace zero::ladder

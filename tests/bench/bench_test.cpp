// What the benchmark programs share: names, times, counters, failures; and their results together.

#include "bench.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/train/registry.hpp>

#include "program.hpp"
#include "report.hpp"

namespace zero::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TestFolder;

struct ProcessResult {
  int code;
  std::string said;
  std::vector<Result> results;
};

// Runs `body`, a main program, with `arguments` and a file for its results.
ProcessResult run_main(const std::vector<std::string>& arguments,
                       const std::function<int(int, char**)>& body) {
  const TestFolder folder;
  std::vector<std::string> words = {"some_bench",
                                    "--benchmark_out=" + (folder / "some_bench.json").string(),
                                    "--benchmark_out_format=json"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  benchmark::ClearRegisteredBenchmarks();
  ::testing::internal::CaptureStdout();
  const int code = body(static_cast<int>(words.size()), argv.data());
  std::fflush(stdout);
  return {code, ::testing::internal::GetCapturedStdout(), read_results(folder / "some_bench.json")};
}

ProcessResult run_one(const std::function<Measured()>& measure,
                      const std::vector<std::string>& arguments = {}) {
  return run_main(arguments, [&](int argc, char** argv) {
    Program program(argc, argv, "One benchmark.");
    if (const auto code = program.parse()) return *code;
    program.add("one/ranks:2", measure);
    program.add("two/ranks:2", [] { return Measured{{1.0}}; });
    return program.run();
  });
}

TEST(Program, TakesTheMedianAndHandsTheCountersOver) {
  const ProcessResult ended = run_one([] { return Measured{{0.3, 0.1, 0.2}, {{"ratio", 0.75}}}; });
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.said, HasSubstr("200.000 ms"));
  ASSERT_THAT(ended.results, SizeIs(2));
  const Result& one = ended.results[0];
  EXPECT_EQ(one.program, "some_bench");
  EXPECT_THAT(one.parts, ElementsAre("one", "ranks:2"));
  EXPECT_DOUBLE_EQ(one.numbers.at("seconds"), 0.2);
  EXPECT_DOUBLE_EQ(one.numbers.at("best_s"), 0.1);
  EXPECT_EQ(one.numbers.at("times_measured"), 3);
  EXPECT_EQ(one.numbers.at("ratio"), 0.75);
}

TEST(Program, FailsWhereABenchmarkFailsAndRunsTheOthers) {
  const ProcessResult ended = run_one([]() -> Measured { throw Error("rank 1 fell over"); });
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.said, AllOf(HasSubstr("FAILED: rank 1 fell over"), HasSubstr("1000.000 ms")));
  ASSERT_THAT(ended.results, SizeIs(2));
  EXPECT_EQ(ended.results[0].error, "rank 1 fell over");
}

TEST(Program, DoesNotFailWhereSomethingCannotRunOnThisMachine) {
  const ProcessResult ended = run_one([]() -> Measured { throw NotHere("no such device"); });
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.said, HasSubstr("not here: no such device"));
}

TEST(Program, RunsWhatTheFilterNamesAndRefusesWhatItDoesNotKnow) {
  const auto fast = [] { return Measured{{0.1}}; };
  const ProcessResult filtered = run_one(fast, {"--filter", "^two"});
  ASSERT_THAT(filtered.results, SizeIs(1));
  EXPECT_EQ(filtered.results[0].name(), "two/ranks:2");
  EXPECT_EQ(run_one(fast, {"--no-such-flag"}).code, 2);
}

TEST(Program, FailsWithWhatARankSaid) {
  const ProcessResult ended = run_one([] {
    dist::LaunchOptions options;
    on_ranks(options, [](dist::Communicator& c) -> Json {
      if (c.rank() == 1) throw Error("out of luck");
      return {{"rank", c.rank()}};
    });
    return Measured{{1.0}};
  });
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.said, AllOf(HasSubstr("rank 1"), HasSubstr("out of luck")));
}

TEST(Numbers, AreOfAllRanks) {
  const std::vector<Json> ranks = {{{"t", {1.0, 5.0}}, {"n", 1}}, {{"t", {2.0, 4.0}}, {"n", 4}}};
  EXPECT_THAT(slowest(ranks, "t"), ElementsAre(2.0, 5.0));
  EXPECT_EQ(mean(ranks, "n"), 2.5);
  EXPECT_EQ(largest(ranks, "n"), 4.0);
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 3.0, 1.0, 2.0}), 3.0);
}

// Trains on each rank alone, holds all it can, and says that it holds nothing.
class Modest final : public train::Strategy {
 public:
  explicit Modest(const train::StrategyArguments& arguments) : Strategy(arguments) {
    broadcast_from_rank_0();
  }
  void finish_backward() override {
    for (std::size_t i = 0; i < count(); ++i) gradient_to_reduce(i);
    complete_reduction();
  }
  train::ModelStateBytes predicted_bytes() const override { return {1, 1, 1}; }
  std::int64_t predicted_traffic() const override { return 0; }
};

void register_modest(train::Registry& registry) {
  registry.add({"modest", "none", {""}, [](const train::StrategyArguments& arguments) {
                  return std::make_unique<Modest>(arguments);
                }});
}

TEST(Chapter, FailsWhereAModeHoldsMoreThanItsFormulaSays) {
  const ProcessResult ended =
      run_main({"--steps", "2", "--seq-len", "8", "--layers", "1"},
               [](int argc, char** argv) { return run_chapter(argc, argv, &register_modest); });
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.said, HasSubstr("holds 1.0000"));
}

std::vector<Result> some_results() {
  return {{"zero1_bench",
           {"zero1", "tiny", "ranks:2"},
           "",
           {{"seconds", 0.0123}, {"ratio", 0.75}, {"formula", 0.75}, {"total_mib", 42.125}}},
          {"collectives_bench",
           {"all_reduce", "4KiB", "ranks:2", "tcp"},
           "",
           {{"seconds", 2e-4}, {"algbw_gb_per_s", 0.02}, {"busbw_gb_per_s", 0.01}}},
          {"adamw_bench", {"adamw", "1M", "ours"}, "", {{"seconds", 0.002}, {"gb_per_s", 14.0}}},
          {"collectives_bench", {"all_reduce", "4KiB", "ranks:2", "host"}, "not allowed", {}}};
}

TEST(Report, ReadsBackWhatItWrote) {
  const TestFolder folder;
  write_results(folder / "bench.json", {{"project_version", "1"}}, some_results());
  const std::vector<Result> read = read_results(folder / "bench.json");
  ASSERT_THAT(read, SizeIs(4));
  for (std::size_t i = 0; i < read.size(); ++i) {
    const Result wrote = some_results()[i];
    EXPECT_EQ(read[i].program, wrote.program);
    EXPECT_EQ(read[i].parts, wrote.parts);
    EXPECT_EQ(read[i].error, wrote.error);
    EXPECT_EQ(read[i].numbers, wrote.numbers);
  }
}

TEST(Report, HasATableForEachKind) {
  const std::vector<Section> sections = tables(some_results());
  ASSERT_THAT(sections, SizeIs(3));
  EXPECT_THAT(sections[0].table.to_text(), AllOf(HasSubstr("zero1"), HasSubstr("0.7500"),
                                                 HasSubstr("42.12"), HasSubstr("12.3")));
  EXPECT_THAT(sections[1].table.to_text(), AllOf(HasSubstr("all_reduce"), HasSubstr("0.200")));
  EXPECT_THAT(sections[2].table.to_text(), AllOf(HasSubstr("adamw/1M/ours"), HasSubstr("14.0")));
  EXPECT_THAT(tables({}), IsEmpty());
}

ProcessResult run_report(const TestFolder& folder, const std::string& arguments) {
  const std::string log = (folder / "log").string();
  const int status =
      std::system(("'" ZERO_BENCH_REPORT "' " + arguments + " > '" + log + "' 2>&1").c_str());
  std::ifstream file(log);
  return {
      WIFEXITED(status) ? WEXITSTATUS(status) : -1, {std::istreambuf_iterator<char>(file), {}}, {}};
}

TEST(Report, PutsFilesTogether) {
  const TestFolder folder;
  write_results(folder / "a.json", Json::object(), {some_results()[0]});
  write_results(folder / "b.json", Json::object(), {some_results()[2], some_results()[3]});
  std::ofstream(folder / "empty.json").close();
  const std::string all = (folder / "all.json").string();
  const ProcessResult ended = run_report(
      folder, fmt::format("--json {} {} {} {}", all, (folder / "a.json").string(),
                          (folder / "b.json").string(), (folder / "empty.json").string()));
  EXPECT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, AllOf(HasSubstr("zero1"), HasSubstr("adamw/1M/ours"),
                                HasSubstr("all_reduce/4KiB/ranks:2/host: not allowed")));
  EXPECT_THAT(read_results(all), SizeIs(3));
}

TEST(Report, RefusesWhatHoldsNoResults) {
  const TestFolder folder;
  std::ofstream(folder / "torn.json") << "{\"context\": {}, \"benchm";
  std::ofstream(folder / "other.json") << "{\"modes\": []}";
  for (const char* name : {"torn.json", "other.json", "missing.json"}) {
    EXPECT_EQ(run_report(folder, (folder / name).string()).code, 1) << name;
  }
}

}  // namespace
}  // namespace zero::bench

// Each benchmark program by itself, as briefly as it can be run. ctest runs one of these tests for
// every program (bench.<program>) and says in ZERO_BENCH_PROGRAM which it is about.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>

#include <tests/support/test_folder.hpp>

#include "report.hpp"

namespace zero::bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class Smoke : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* program = std::getenv("ZERO_BENCH_PROGRAM");
    if (program == nullptr) GTEST_SKIP() << "ZERO_BENCH_PROGRAM names no program: use ctest";
    program_ = program;
  }

  // Runs the program and reads what it wrote; fails the test if it fails or says that one of its
  // benchmarks did.
  void run(const std::string& arguments) {
    const auto json = folder_ / (std::filesystem::path(program_).filename().string() + ".json");
    const auto log = folder_ / "log";
    const int status = std::system(
        fmt::format("'{}' {} --benchmark_out='{}' --benchmark_out_format=json > '{}' 2>&1",
                    program_, arguments, json.string(), log.string())
            .c_str());
    std::ifstream file(log);
    const std::string said{std::istreambuf_iterator<char>(file), {}};
    ASSERT_TRUE(WIFEXITED(status)) << said;
    ASSERT_EQ(WEXITSTATUS(status), 0) << said;
    ASSERT_THAT(said, Not(::testing::HasSubstr("FAILED"))) << said;
    results_ = read_results(json);
    ASSERT_THAT(results_, Not(IsEmpty())) << said;
  }

  static double number(const Result& result, const std::string& key) {
    EXPECT_TRUE(result.has(key)) << result.name() << " has no " << key;
    return result.has(key) ? result.numbers.at(key) : std::nan("");
  }

  std::string program_;
  testing::TestFolder folder_;
  std::vector<Result> results_;
};

// What a stage holds at two ranks, in what plain DDP holds with AdamW; nothing for other modes.
std::optional<double> ratio_of(const std::string& mode) {
  static const std::map<std::string, double> ratios = {
      {"ddp", 1.0},           {"zero1", 0.75},         {"zero2", 0.625},      {"zero3", 0.5},
      {"tensor_zero1", 0.75}, {"tensor_zero2", 0.625}, {"tensor_zero3", 0.5}, {"engine0", 1.0},
      {"engine1", 0.75},      {"engine2", 0.625},      {"engine3", 0.5}};
  if (mode == "engine3:hybrid")
    return ratios.at("engine2");  // all units of a small model are small
  const auto found = ratios.find(mode.substr(0, mode.find(':')));
  return found == ratios.end() ? std::nullopt : std::optional(found->second);
}

TEST_F(Smoke, Chapter) {
  run("--nproc 2 --model tiny --layers 1 --seq-len 8 --steps 2");
  if (HasFatalFailure()) return;
  for (const Result& result : results_) {
    SCOPED_TRACE(result.name());
    ASSERT_EQ(result.error, "");
    ASSERT_THAT(result.parts, SizeIs(3));
    // The little that is not exact is padding, more in a small model than in a large one.
    if (const auto ratio = ratio_of(result.parts[0])) {
      EXPECT_NEAR(number(result, "ratio"), *ratio, 0.005);
    }
    EXPECT_NEAR(number(result, "ratio"), number(result, "formula"), 0.001);
    const double total = number(result, "parameters_mib") + number(result, "gradients_mib") +
                         number(result, "optimizer_mib");
    EXPECT_NEAR(number(result, "total_mib"), total, 1e-9 * total);
    EXPECT_GE(number(result, "total_max_mib"), number(result, "total_mib"));
    EXPECT_GT(number(result, "peak_mib"), number(result, "total_max_mib"));
    EXPECT_GE(number(result, "sent_v"), 1.0) << "2V (N-1)/N is one V at two ranks";
    EXPECT_LT(number(result, "sent_v"), 4.0);
    EXPECT_GT(number(result, "seconds"), 0.0);
    EXPECT_EQ(number(result, "times_measured"), 1) << "the first step is not counted";
    for (const char* phase : {"forward_s", "backward_s", "communication_s", "optimizer_s"}) {
      EXPECT_GE(number(result, phase), 0.0) << phase;
    }
  }
}

TEST_F(Smoke, Collectives) {
  run("--nproc 2 --max-kib 4 --repetitions 2");
  if (HasFatalFailure()) return;
  std::map<std::string, std::vector<std::string>> seen;  // by operation and size: the ways
  for (const Result& result : results_) {
    SCOPED_TRACE(result.name());
    ASSERT_THAT(result.parts, SizeIs(4));
    EXPECT_EQ(result.parts[2], "ranks:2");
    seen[result.parts[0] + "/" + result.parts[1]].push_back(result.parts[3]);
    if (result.parts[3] == "host" && !result.error.empty()) continue;  // not every machine lets it
    ASSERT_EQ(result.error, "");
    const double bytes = result.parts[1] == "1KiB" ? 1024 : 4096;
    EXPECT_EQ(number(result, "bytes"), bytes);
    EXPECT_NEAR(number(result, "algbw_gb_per_s") * number(result, "seconds"), bytes / 1e9,
                1e-3 * bytes / 1e9);
    const std::string& operation = result.parts[0];
    const bool whole =
        operation == "all_reduce" || operation == "reduce" || operation == "broadcast";
    EXPECT_NEAR(number(result, "busbw_gb_per_s") / number(result, "algbw_gb_per_s"),
                whole ? 1.0 : 0.5, 1e-6)
        << "2 (N-1)/N, (N-1)/N or 1";
  }
  for (const char* operation :
       {"all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"}) {
    for (const char* size : {"1KiB", "4KiB"}) {
      const auto& ways = seen[fmt::format("{}/{}", operation, size)];
      EXPECT_THAT(ways, AllOf(Contains("host"), Contains("tcp"), Contains("gloo"))) << operation;
    }
  }
}

TEST_F(Smoke, AdamW) {
  run("--millions 1 --steps 2");
  if (HasFatalFailure()) return;
  ASSERT_THAT(results_, SizeIs(2));
  EXPECT_EQ(results_[0].name(), "adamw/1M/ours");
  EXPECT_EQ(results_[1].name(), "adamw/1M/libtorch");
  for (const Result& result : results_) {
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(number(result, "times_measured"), 2);
    EXPECT_NEAR(number(result, "gb_per_s") * number(result, "seconds"), 0.028, 1e-5);
  }
}

}  // namespace
}  // namespace zero::bench

// The small programs: what they print, and how small they are.

#include <fmt/ranges.h>

#include <fstream>
#include <set>

#include <tools/exercise/small_formulas.hpp>

#include "small_program.hpp"

namespace zero {
namespace {

const std::vector<std::string> kChapters = {"00_simple_ddp",      "01_zero1",
                                            "02_zero2",           "03_zero3",
                                            "04_tensor_sharding", "05_prefetch_overlap"};

std::string source_of(const std::string& chapter) {
  return std::string(ZERO_SOURCE_FOLDER) + "/" + chapter + "/minimal.cpp";
}

void expect_figures(int chapter, int ranks, const testing::SmallRow& row) {
  SCOPED_TRACE(
      fmt::format("chapter {}, rank {} of {}, step {}", chapter, row.rank, ranks, row.step));
  const exercise::Expected e = exercise::expected(chapter, ranks, row.rank);
  EXPECT_EQ(row.parameters, e.parameters);
  EXPECT_EQ(row.gradients, e.gradients);
  EXPECT_EQ(row.optimizer, e.optimizer);
  EXPECT_EQ(row.peak, e.states_peak);
  EXPECT_EQ(row.sent, e.gradients_sent + e.parameters_sent);
}

class SmallPrograms : public ::testing::TestWithParam<int> {};

TEST_P(SmallPrograms, HoldAndSendWhatTheFormulasSayAndEndWithOneDigest) {
  const int ranks = GetParam();
  std::set<std::string> digests, losses;
  for (int chapter = 0; chapter < 6; ++chapter) {
    const auto output =
        testing::run_small_program(kChapters[static_cast<std::size_t>(chapter)], ranks);
    ASSERT_EQ(output.rows.size(), static_cast<std::size_t>(ranks * exercise::kSteps)) << chapter;
    ASSERT_EQ(output.digests.size(), static_cast<std::size_t>(ranks)) << chapter;
    for (const testing::SmallRow& row : output.rows) {
      expect_figures(chapter, ranks, row);
      losses.insert(fmt::format("{} {} {}", row.rank, row.step, row.loss));
    }
    digests.insert(output.digests.begin(), output.digests.end());
  }
  EXPECT_EQ(digests.size(), 1U) << fmt::format("{}", fmt::join(digests, " "));
  EXPECT_EQ(losses.size(), static_cast<std::size_t>(ranks * exercise::kSteps))
      << "a loss differs between chapters";
}

INSTANTIATE_TEST_SUITE_P(Ranks, SmallPrograms, ::testing::Values(1, 2, 3, 4, 8));

TEST(SmallProgramText, HasAtMost130LinesAndFewThatAreNew) {
  const std::vector<int> most_added = {10, 8, 28, 25, 25};
  for (std::size_t i = 0; i < kChapters.size(); ++i) {
    std::ifstream file(source_of(kChapters[i]));
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    EXPECT_GT(lines, 50) << kChapters[i];
    EXPECT_LE(lines, 130) << kChapters[i];
    if (i == 0) continue;
    const std::string numbers =
        testing::output_of(fmt::format("git diff --no-index --numstat '{}' '{}'",
                                       source_of(kChapters[i - 1]), source_of(kChapters[i])),
                           /*code=*/1);  // they differ
    int added = 0;
    std::istringstream(numbers) >> added;
    EXPECT_GT(added, 0) << kChapters[i];
    EXPECT_LE(added, most_added[i - 1]) << kChapters[i];
  }
}

TEST(SmallProgramArguments, AreOptional) {
  const std::string program = fmt::format("'{}/{}_minimal'", ZERO_MINIMAL_FOLDER, kChapters[0]);
  const std::string of_two = testing::output_of(program + " 2");
  EXPECT_EQ(testing::output_of(program), of_two);
  EXPECT_EQ(testing::output_of(program + " 0"), of_two);
}

}  // namespace
}  // namespace zero

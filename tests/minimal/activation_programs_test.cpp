// The programs of lesson 08 about activations: every figure that they print follows from a formula,
// and the lesson and the document on the literature quote what they print.

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "small_program.hpp"

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

std::string run_program(const std::string& name) {
  return output_of(fmt::format("'{}/{}'", ZERO_MINIMAL_FOLDER, name));
}

std::string page(const std::string& path) {
  std::ifstream file(fmt::format("{}/{}", ZERO_SOURCE_FOLDER, path));
  return {std::istreambuf_iterator<char>(file), {}};
}

struct CutRow {
  std::int64_t formula = 0, measured = 0;
  std::string published, of_the_batch, of_its_own;
  std::int64_t sent = 0;
};

// The rows below the rule, by what is cut.
std::map<std::string, CutRow> rows_of(const std::string& output) {
  std::map<std::string, CutRow> rows;
  std::istringstream lines(output.substr(output.find("---")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const std::string name = line.substr(0, line.find("  "));
    line.erase(std::remove(line.begin(), line.end(), ','), line.end());
    std::istringstream words(line.substr(line.find(" x ") + 4));
    CutRow& row = rows[name];
    words >> row.formula >> row.measured >> row.published >> row.of_the_batch >> row.of_its_own >>
        row.sent;
    EXPECT_FALSE(words.fail()) << line;
  }
  return rows;
}

// B samples of S tokens of H features, on d data-parallel and t tensor-parallel ranks.
void expect_row(const CutRow& row, int d, int t, std::int64_t batch, bool sequence) {
  EXPECT_EQ(row.formula, batch / (d * t));
  EXPECT_EQ(row.measured, row.formula);
  EXPECT_EQ(row.published, sequence ? std::to_string(d * t) : "-");
  EXPECT_EQ(row.of_the_batch, fmt::format("{}.00", d * t));
  EXPECT_EQ(row.of_its_own, fmt::format("{}.00", t));
  // Six all-reduces of a rank's own samples, and with Pa an all-gather.
  EXPECT_EQ(row.sent, (sequence ? 12 : 13) * (batch / d) * (t - 1) / t);
}

void expect_table(const std::string& output, int d, int t, std::int64_t batch) {
  SCOPED_TRACE(output);
  const auto rows = rows_of(output);
  ASSERT_EQ(rows.size(), 5U);
  expect_row(rows.at("nothing"), 1, 1, batch, true);
  expect_row(rows.at("batch"), d, 1, batch, true);
  expect_row(rows.at("sequence"), 1, t, batch, true);
  expect_row(rows.at("both"), d, t, batch, true);
  expect_row(rows.at("batch, Pa"), d, t, batch, false);
}

TEST(ActivationCuts, AreThoseOfTheFormulaByTheAllocatorsCount) {
  expect_table(run_program("activation_cuts"), 2, 2, 8 * 32 * 64 * 4);
}

TEST(ActivationCuts, TakeNoOptions) {
  EXPECT_THAT(output_of(fmt::format("'{}/activation_cuts' --data 3 2>&1", ZERO_MINIMAL_FOLDER),
                        /*code=*/1),
              HasSubstr("'--data' is not expected"));
}

TEST(Ulysses, SendsWhatTheFormulasSayAndEqualsAttentionThatNothingSplits) {
  const std::int64_t stream = 16 * 32 * 4, weights = 4 * 32 * 32 * 4;
  for (const int n : {1, 2, 4, 8}) {
    std::string expected =
        "rank  positions  heads  activations  parameters  gradients  equal to unsplit\n";
    for (int rank = 0; rank < n; ++rank) {
      // q, k, v and what comes of them, in forward and in backward; a gather, a reduce-scatter.
      expected +=
          fmt::format("{:4} {:10} {:6} {:12} {:11} {:10}  yes\n", rank, 16 / n, 8 / n,
                      8 * stream * (n - 1) / (n * n), weights * (n - 1) / n, weights * (n - 1) / n);
    }
    EXPECT_EQ(printed_by_small_program("08_tensor_parallel", n, "ulysses"), expected);
  }
}

TEST(Ulysses, RefusesRanksThatCannotShareTheHeads) {
  EXPECT_THAT(
      output_of(fmt::format("('{}/08_tensor_parallel_ulysses' 3 2>&1; true)", ZERO_MINIMAL_FOLDER)),
      HasSubstr("take 1, 2, 4 or 8 ranks"));
}

TEST(Ulysses, HasAtMost120Lines) {
  std::ifstream file(std::string(ZERO_SOURCE_FOLDER) + "/08_tensor_parallel/ulysses.cpp");
  EXPECT_LE(std::count(std::istreambuf_iterator<char>(file), {}, '\n'), 120);
}

void expect_quoted(const std::string& path, const std::string& words, const std::string& printed) {
  EXPECT_THAT(page(path),
              HasSubstr(fmt::format("    ./run step 08 {}\n\n```text\n{}```\n", words, printed)));
}

TEST(ActivationPages, QuoteWhatTheProgramsPrint) {
  expect_quoted("08_tensor_parallel/activations.md", "activation_cuts",
                run_program("activation_cuts"));
  expect_quoted("08_tensor_parallel/ulysses.md", "--ulysses 4",
                printed_by_small_program("08_tensor_parallel", 4, "ulysses"));
}

}  // namespace
}  // namespace zero::testing

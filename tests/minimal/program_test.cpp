// The small programs: what they print, and how small they are.

#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <set>

#include <grading/small_formulas.hpp>

#include "small_program.hpp"

namespace zero {
namespace {

// At the place of their number.
const std::vector<std::string> kChapters = {
    "00_simple_ddp", "01_zero1",           "02_zero2",
    "03_zero3",      "04_tensor_sharding", "05_prefetch_overlap",
    "06_hsdp",       "07_zero_plus_plus",  "08_tensor_parallel",
    "09_pipeline",   "10_offload"};

std::string source_of(const std::string& chapter, const std::string& program = "minimal") {
  return fmt::format("{}/{}/{}.cpp", ZERO_SOURCE_FOLDER, chapter, program);
}

int lines_of(const std::string& path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

// The lines that `right` has and `left` has not.
int lines_added(const std::string& left, const std::string& right) {
  const std::string numbers =
      testing::output_of(fmt::format("git diff --no-index --numstat '{}' '{}'", left, right),
                         /*code=*/1);  // they differ
  int added = 0;
  std::istringstream(numbers) >> added;
  return added;
}

// `more`: the columns that only this chapter has.
void expect_figures(const exercise::Expected& e, const testing::SmallRow& row,
                    const std::vector<std::int64_t>& more) {
  EXPECT_EQ(row.parameters, e.parameters);
  EXPECT_EQ(row.gradients, e.gradients);
  EXPECT_EQ(row.optimizer, e.optimizer);
  EXPECT_EQ(row.peak, e.states_peak);
  EXPECT_EQ(row.more, more);
}

void expect_figures(int chapter, int ranks, const testing::SmallRow& row) {
  SCOPED_TRACE(
      fmt::format("chapter {}, rank {} of {}, step {}", chapter, row.rank, ranks, row.step));
  const exercise::Expected e = exercise::expected(chapter, ranks, row.rank);
  std::vector<std::int64_t> more;
  if (chapter == 6) more = {e.gradients_sent_between};
  if (chapter == 8) more = {e.activations_sent};
  if (chapter == 10) more = {e.file, e.disk};
  expect_figures(e, row, more);
  EXPECT_EQ(row.sent, e.gradients_sent + e.parameters_sent - e.gradients_sent_between);
}

// A row of each rank and step, and one digest of all ranks.
testing::SmallOutput run_of(int chapter, int ranks, const std::string& words = "",
                            const std::string& program = "minimal") {
  const auto output = testing::run_small_program(kChapters[static_cast<std::size_t>(chapter)],
                                                 ranks, words, program);
  EXPECT_EQ(output.rows.size(), static_cast<std::size_t>(ranks * exercise::kSteps)) << program;
  EXPECT_EQ(output.digests, std::vector(static_cast<std::size_t>(ranks), output.digests.at(0)));
  return output;
}

class SmallPrograms : public ::testing::TestWithParam<int> {};

// The bits of chapters 06 and 07 are compared in class_test.cpp: with DDP that adds in its order,
// and with a model that computes with the same 8 bits.
TEST_P(SmallPrograms, HoldAndSendWhatTheFormulasSayAndEndWithOneDigest) {
  const int ranks = GetParam();
  std::set<std::string> digests, losses;
  for (const int chapter : {0, 1, 2, 3, 4, 5, 6, 7, 10}) {
    const auto output = run_of(chapter, ranks);
    for (const testing::SmallRow& row : output.rows) {
      expect_figures(chapter, ranks, row);
      if (chapter == 6 || chapter == 7) continue;
      losses.insert(fmt::format("{} {} {}", row.rank, row.step, row.loss));
      digests.insert(output.digests[0]);
    }
  }
  EXPECT_EQ(digests.size(), 1U) << fmt::format("{}", fmt::join(digests, " "));
  EXPECT_EQ(losses.size(), static_cast<std::size_t>(ranks * exercise::kSteps))
      << "a loss differs between chapters";
}

// The same losses, bytes, peaks, bytes sent and digest, with a backward that autograd runs.
TEST_P(SmallPrograms, UnderAutogradPrintWhatTheirOwnBackwardPrints) {
  for (const char* const chapter : {"02_zero2", "03_zero3"}) {
    const std::string printed = testing::printed_by_small_program(chapter, GetParam());
    EXPECT_FALSE(printed.empty());
    EXPECT_EQ(testing::printed_by_small_program(chapter, GetParam(), "autograd"), printed);
  }
}

// What units.cpp prints of one method, "zero3" or "ddp".
struct UnitsOutput {
  std::map<std::pair<int, int>, std::string> losses;  // by rank and step
  std::map<int, std::set<std::string>> bytes;         // by rank: "at rest, at the peak"
  std::set<std::string> calls, digests;
};

UnitsOutput printed_by_units(int ranks, const std::string& method) {
  UnitsOutput output;
  std::istringstream lines(testing::printed_by_small_program("03_zero3", ranks, "units"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, what, text, held, peak;
    int rank = 0;
    words >> rank >> name >> what;
    if (name != method) continue;
    std::getline(words, text);
    if (what == "calls") output.calls.insert(text);
    if (what == "digest") output.digests.insert(text);
    if (what == "calls" || what == "digest") continue;
    std::istringstream(text) >> output.losses[{rank, std::stoi(what)}] >> held >> peak;
    output.bytes[rank].insert(fmt::format("{}, {}", held, peak));
  }
  return output;
}

// The layers of units.cpp by unit: the root, A, B and C.
const std::vector<std::vector<int>> kLayersOfUnits = {{0, 6}, {1, 3}, {2}, {4, 5}};

// Bytes of a rank's weights there: at rest, and at the peak, when backward is in B or in C.
std::pair<std::int64_t, std::int64_t> units_bytes(int ranks, int rank) {
  const std::vector<std::int64_t> elements = {13 * 20, 21 * 24, 25 * 22, 23 * 22,
                                              23 * 18, 19 * 22, 23 * 11};
  const auto bytes_of = [&](const std::vector<int>& units, bool owned) {
    std::int64_t bytes = 0;
    for (const int unit : units) {
      for (const int layer : kLayersOfUnits[static_cast<std::size_t>(unit)]) {
        if ((layer % ranks == rank) == owned)
          bytes += 4 * elements[static_cast<std::size_t>(layer)];
      }
    }
    return bytes;
  };
  const std::int64_t own = bytes_of({0, 1, 2, 3}, true);
  return {own, own + std::max(bytes_of({0, 1, 2}, false), bytes_of({0, 3}, false))};
}

constexpr const char* kUnitsCalls =
    "gather root gather A gather B gather C gather C gather C reduce C gather A gather B reduce B "
    "reduce A reduce root";

TEST_P(SmallPrograms, ByUnitHoldTheUnitsThatRunAndEndWithTheWeightsOfDdp) {
  const int ranks = GetParam();
  const UnitsOutput zero3 = printed_by_units(ranks, "zero3"), ddp = printed_by_units(ranks, "ddp");
  ASSERT_EQ(zero3.losses.size(), static_cast<std::size_t>(ranks * exercise::kSteps));
  EXPECT_EQ(zero3.losses, ddp.losses);
  EXPECT_EQ(zero3.digests.size(), 1U);
  EXPECT_EQ(zero3.digests, ddp.digests);
  EXPECT_EQ(zero3.calls, std::set{std::string(" ") + kUnitsCalls}) << "also on rank 1";
  for (int rank = 0; rank < ranks; ++rank) {
    const auto [held, peak] = units_bytes(ranks, rank);
    EXPECT_EQ(zero3.bytes.at(rank), std::set{fmt::format("{}, {}", held, peak)}) << rank;
    const std::int64_t all = units_bytes(1, 0).first;
    EXPECT_EQ(ddp.bytes.at(rank), std::set{fmt::format("{}, {}", all, all)}) << rank;
  }
}

// The losses by rank of the data axis and step.
std::map<std::pair<int, int>, std::set<std::string>> losses_of(const testing::SmallOutput& output,
                                                               int tensor_ranks) {
  std::map<std::pair<int, int>, std::set<std::string>> losses;
  for (const testing::SmallRow& row : output.rows) {
    losses[{row.rank / tensor_ranks, row.step}].insert(row.loss);
  }
  return losses;
}

// Over all ranks.
double mean_loss(const testing::SmallOutput& output, int step) {
  double sum = 0;
  for (const testing::SmallRow& row : output.rows) {
    if (row.step == step) sum += std::stod(row.loss);
  }
  return sum / static_cast<double>(output.digests.size());
}

// Without a tensor axis the mesh has the bits of chapter 03. With one, sums of parts round in
// another way: here the printed losses are compared, in class_test.cpp the bits with a model that
// adds in that order.
TEST_P(SmallPrograms, OnAMeshHoldAndSendWhatTheFormulasSay) {
  const int ranks = GetParam(), tensor_ranks = exercise::tensor_ranks(ranks);
  const auto output = run_of(8, ranks), zero3 = run_of(3, ranks / tensor_ranks);
  for (const testing::SmallRow& row : output.rows) expect_figures(8, ranks, row);
  if (tensor_ranks == 1) {
    EXPECT_EQ(output.digests, zero3.digests);
  }
  const auto losses = losses_of(output, tensor_ranks), right = losses_of(zero3, 1);
  ASSERT_EQ(losses.size(), right.size());
  for (const auto& [where, texts] : losses) {
    SCOPED_TRACE(fmt::format("rank {} of the data axis, step {}", where.first, where.second));
    EXPECT_EQ(texts.size(), 1U) << "ranks of one tensor axis have different losses";
    EXPECT_NEAR(std::stod(*texts.begin()), std::stod(*right.at(where).begin()),
                tensor_ranks == 1 ? 0.0 : 2e-6);  // two of the last printed digit
  }
}

// Sums are in the order of ranks, so a reduce-scatter and an all-gather have the bits of an
// all-reduce, and a layer that runs again has those of its first run.
TEST_P(SmallPrograms, WithCutActivationsHoldAndSendWhatTheFormulasSayAndHaveTheBitsOfTheMesh) {
  const int ranks = GetParam(), tensor_ranks = exercise::tensor_ranks(ranks);
  const auto mesh = run_of(8, ranks);
  for (const bool cuts_sequence : {true, false}) {
    const std::string name = cuts_sequence ? "sequence" : "partitioned";
    const auto output = run_of(8, ranks, "", name);
    EXPECT_EQ(output.digests, mesh.digests) << name;
    ASSERT_EQ(output.rows.size(), mesh.rows.size()) << name;
    std::map<std::pair<int, int>, double> mean_losses;  // over a tensor axis
    for (std::size_t r = 0; r < output.rows.size(); ++r) {
      const testing::SmallRow& row = output.rows[r];
      SCOPED_TRACE(fmt::format("{}, rank {} of {}, step {}", name, row.rank, ranks, row.step));
      const exercise::Expected e = cuts_sequence ? exercise::expected_sequence(ranks, row.rank)
                                                 : exercise::expected_partitioned(ranks, row.rank);
      expect_figures(e, row, {e.activations_sent, e.activations_kept, e.activations_peak});
      EXPECT_EQ(row.sent, e.gradients_sent + e.parameters_sent);
      mean_losses[{row.rank / tensor_ranks, row.step}] += std::stod(row.loss) / tensor_ranks;
      if (!cuts_sequence) {
        EXPECT_EQ(row.loss, mesh.rows[r].loss);
      }
    }
    // Under sequence parallelism a rank's loss is that of its own samples.
    for (const auto& [where, losses] : losses_of(mesh, tensor_ranks)) {
      EXPECT_NEAR(mean_losses.at(where), std::stod(*losses.begin()), 2e-6);  // of printed digits
    }
  }
}

// hpz.cpp and qgz.cpp. The first has the bits of chapter 04; those of the second are compared in
// class_test.cpp.
TEST_P(SmallPrograms, OnHostsHoldAndSendWhatTheFormulasSay) {
  const int ranks = GetParam();
  for (const bool quantizes : {false, true}) {
    const auto output = run_of(7, ranks, "", quantizes ? "qgz" : "hpz");
    const exercise::Expected e =
        quantizes ? exercise::expected_qgz(ranks) : exercise::expected_hpz(ranks);
    const std::int64_t between = e.gradients_sent_between + e.parameters_sent_between;
    for (const testing::SmallRow& row : output.rows) {
      SCOPED_TRACE(fmt::format("{}, rank {} of {}, step {}", quantizes ? "qgz" : "hpz", row.rank,
                               ranks, row.step));
      expect_figures(e, row, {between});
      EXPECT_EQ(row.sent, e.gradients_sent + e.parameters_sent - between);
    }
    if (!quantizes) {
      EXPECT_EQ(output.digests, run_of(4, ranks).digests);
    }
  }
}

// A micro-batch has the samples of one rank of chapter 00, so that both train with the same batch.
TEST_P(SmallPrograms, InAPipelineHoldAndSendWhatTheFormulasSayAndEndWithTheDigestOfDdp) {
  const int stages = GetParam();
  const auto ddp = testing::run_small_program("00_simple_ddp", exercise::kMicroBatches);
  for (const bool gpipe : {true, false}) {
    const auto output = run_of(9, stages, gpipe ? "gpipe" : "");
    for (const testing::SmallRow& row : output.rows) {
      SCOPED_TRACE(fmt::format("{}, stage {} of {}, step {}", gpipe ? "GPipe" : "1F1B", row.rank,
                               stages, row.step));
      const exercise::Expected e = exercise::expected_stage(gpipe, stages, row.rank);
      expect_figures(
          e, row, {exercise::micro_batches_in_flight(gpipe, stages, row.rank), e.activations_peak});
      EXPECT_EQ(row.sent, e.activations_sent);
      if (row.rank < stages - 1) {
        EXPECT_EQ(row.loss, "-");
      } else {
        EXPECT_NEAR(std::stod(row.loss), mean_loss(ddp, row.step), 2e-6);  // of printed digits
      }
    }
    EXPECT_EQ(output.digests[0], ddp.digests[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SmallPrograms, ::testing::Values(1, 2, 3, 4, 6, 8));

// Each is compared with the one before, chapters 06 and 07 with 04, 08 with 03, 09 with 00 and 10
// with 05.
TEST(SmallProgramText, HasAtMost160LinesAndFewThatAreNew) {
  const std::vector<std::size_t> compared_with = {0, 0, 1, 2, 3, 4, 4, 4, 3, 0, 5};
  const std::vector<int> most_added = {0, 10, 8, 28, 25, 25, 40, 45, 60, 95, 35};
  const std::vector<int> most_lines = {130, 130, 130, 130, 130, 130, 150, 150, 150, 160, 160};
  for (std::size_t i = 0; i < kChapters.size(); ++i) {
    const int lines = lines_of(source_of(kChapters[i]));
    EXPECT_GT(lines, 50) << kChapters[i];
    EXPECT_LE(lines, most_lines[i]) << kChapters[i];
    if (i == 0) continue;
    const int added = lines_added(source_of(kChapters[compared_with[i]]), source_of(kChapters[i]));
    EXPECT_GT(added, 0) << kChapters[i];
    EXPECT_LE(added, most_added[i]) << kChapters[i];
  }
}

TEST(SmallProgramText, UnderAutogradHasAtMost170LinesAndFewThatAreNew) {
  const std::string zero2 = source_of("02_zero2", "autograd"),
                    zero3 = source_of("03_zero3", "autograd");
  EXPECT_LE(lines_of(zero3), 170);
  EXPECT_LE(lines_added(source_of("02_zero2"), zero2), 60);
  EXPECT_LE(lines_added(zero2, zero3), 40);
}

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(ZERO_SOURCE_FOLDER) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SmallProgramText, ByUnitHasAtMost220LinesAndItsPageQuotesThem) {
  EXPECT_LE(lines_of(source_of("03_zero3", "units")), 220);
  const std::string page = text_of("03_zero3/units.md"),
                    sources = text_of("03_zero3/units.cpp") +
                              text_of("03_zero3/zero3_sharding.cpp") +
                              text_of("common/zero/nn/before_backward.cpp");
  const std::string fence = "```cpp\n";
  int quotes = 0;
  for (auto begin = page.find(fence); begin != std::string::npos; begin = page.find(fence, begin)) {
    begin += fence.size();
    const std::string quote = page.substr(begin, page.find("```", begin) - begin);
    EXPECT_NE(sources.find(quote), std::string::npos) << quote;
    ++quotes;
  }
  EXPECT_EQ(quotes, 5);
}

TEST(SmallProgramText, OfZeroPlusPlusHasAtMost165LinesAndFewThatAreNew) {
  const std::string hpz = source_of(kChapters[7], "hpz"), qgz = source_of(kChapters[7], "qgz");
  EXPECT_LE(lines_of(qgz), 165);
  EXPECT_LE(lines_added(source_of(kChapters[4]), hpz), 35);
  EXPECT_LE(lines_added(hpz, qgz), 35);
}

TEST(SmallProgramText, OfCutActivationsHasAtMost175LinesAndFewThatAreNew) {
  for (const char* const program : {"sequence", "partitioned"}) {
    const std::string source = source_of(kChapters[8], program);
    EXPECT_LE(lines_of(source), 175) << program;
    EXPECT_LE(lines_added(source_of(kChapters[8]), source), 40) << program;
  }
}

// "11,392".
std::string with_commas(std::int64_t bytes) {
  std::string text = std::to_string(bytes);
  for (int end = static_cast<int>(text.size()) - 3; end > 0; end -= 3) text.insert(end, ",");
  return text;
}

// Whether the page has the text, wherever its lines break.
void expect_quoted(const std::string& page, const std::string& text) {
  std::ifstream file(std::string(ZERO_SOURCE_FOLDER) + "/" + page);
  std::string words;
  for (std::string word; file >> word;) words += word + " ";
  EXPECT_NE(words.find(text), std::string::npos) << page << " lacks: " << text;
}

TEST(SmallProgramFigures, OfTheLessonsFollowFromTheFormulas) {
  const auto on_two = [](int chapter, int rank) { return exercise::expected(chapter, 2, rank); };
  const auto peak = [&](int chapter, int rank = 0) {
    return with_commas(on_two(chapter, rank).states_peak);
  };
  const auto sent = [](int chapter, int ranks, int rank) {
    const exercise::Expected e = exercise::expected(chapter, ranks, rank);
    return with_commas(e.gradients_sent + e.parameters_sent);
  };
  const std::string copy = with_commas(exercise::sum_of(exercise::layer_bytes()));

  expect_quoted("00_simple_ddp/README.md",
                fmt::format("V is {} bytes. A rank holds 4V, {} bytes.", copy, peak(0)));
  // The narrated model, which is smaller: tensors of 4, 2, 4 and 2 elements on three ranks.
  std::vector<std::int64_t> narrated;
  for (int rank = 0; rank < 3; ++rank) {
    std::int64_t bytes = 0;
    for (const int elements : {4, 2, 4, 2}) bytes += exercise::all_reduce_bytes(elements, 3, rank);
    narrated.push_back(bytes);
  }
  expect_quoted("00_simple_ddp/README.md", fmt::format("{} bytes, rank 1 {} and rank 2 {}.",
                                                       narrated[0], narrated[1], narrated[2]));
  expect_quoted(
      "01_zero1/README.md",
      fmt::format("falls from {} bytes to {} on rank 0 and {} on rank 1",
                  with_commas(on_two(0, 0).optimizer), with_commas(on_two(1, 0).optimizer),
                  with_commas(on_two(1, 1).optimizer)));
  expect_quoted("02_zero2/README.md",
                fmt::format("gradients fall from {} to {} bytes and the peak from {} to {}", copy,
                            with_commas(on_two(2, 0).gradients), peak(1), peak(2)));
  expect_quoted("03_zero3/README.md",
                fmt::format("Rank 0 sends {} bytes and rank 1 {}", sent(3, 2, 0), sent(3, 2, 1)));
  expect_quoted("03_zero3/README.md", fmt::format("{} bytes, in backward of layer 1", peak(3)));
  const auto [units_held, units_peak] = units_bytes(2, 0);
  expect_quoted("03_zero3/units.md",
                fmt::format("of {} bytes rank 0 holds {} at rest and {} at the peak",
                            with_commas(units_bytes(1, 0).first), with_commas(units_held),
                            with_commas(units_peak)));
  expect_quoted("03_zero3/units.md", fmt::format("zero3 calls {}", kUnitsCalls));
  expect_quoted("03_zero3/README.md", fmt::format("sends {}; rank 1: {}; rank 2: {}.",
                                                  sent(3, 3, 0), sent(3, 3, 1), sent(3, 3, 2)));
  expect_quoted(
      "04_tensor_sharding/README.md",
      fmt::format("The peak is {} bytes, more than chapter 03's {} on rank 0", peak(4), peak(3)));
  expect_quoted("04_tensor_sharding/README.md",
                fmt::format("F/N is {} bytes, so each sends {}",
                            with_commas(on_two(4, 0).parameters), sent(4, 2, 0)));
  expect_quoted("05_prefetch_overlap/README.md",
                fmt::format("by formula {} bytes, not {}", peak(5), peak(4)));

  // Two hosts of two ranks. A rank of chapter 04 sends equally much to each of the three others.
  const exercise::Expected shared = exercise::expected(4, 4, 0),
                           in_groups = exercise::expected(6, 4, 0);
  const auto held = [](const exercise::Expected& e) {
    return with_commas(e.parameters + e.gradients + e.optimizer);
  };
  expect_quoted(
      "06_hsdp/README.md",
      fmt::format("each holds {} bytes and a host sends {} in a step. With groups of two each "
                  "holds {} and a host sends {}.",
                  held(shared),
                  with_commas(2 * 2 * (shared.gradients_sent + shared.parameters_sent) / 3),
                  held(in_groups), with_commas(2 * in_groups.gradients_sent_between)));
  const auto between = [](int ranks, int rank) {
    return with_commas(exercise::expected(6, ranks, rank).gradients_sent_between);
  };
  const std::int64_t inside =
      in_groups.gradients_sent + in_groups.parameters_sent - in_groups.gradients_sent_between;
  expect_quoted("06_hsdp/README.md", fmt::format("Inside {}: two gathers", with_commas(inside)));
  expect_quoted("06_hsdp/README.md", fmt::format("Between {}: an all-reduce", between(4, 0)));
  expect_quoted("06_hsdp/README.md",
                fmt::format("make it {}, {} and {}.", between(6, 0), between(6, 2), between(6, 4)));
  // Chapter 07 on two hosts of two ranks.
  const exercise::Expected hpz = exercise::expected_hpz(4), qgz = exercise::expected_qgz(4);
  const std::int64_t hpz_between = hpz.gradients_sent_between + hpz.parameters_sent_between;
  expect_quoted(
      "07_zero_plus_plus/README.md",
      fmt::format("Under hpZ each rank holds {} bytes, backward gathers inside the host, and {} "
                  "bytes leave it.",
                  held(hpz), with_commas(2 * hpz_between)));
  expect_quoted("07_zero_plus_plus/README.md",
                fmt::format("{} bytes of parameters", with_commas(hpz.parameters)));
  expect_quoted("07_zero_plus_plus/README.md",
                fmt::format("{} inside, and 2 x 2 x 2,852 = {} between.",
                            with_commas(hpz.gradients_sent + hpz.parameters_sent - hpz_between),
                            with_commas(hpz_between)));
  expect_quoted("07_zero_plus_plus/quantized_weights.md",
                fmt::format("sends {} bytes in chapter 04's program, and {} here.",
                            with_commas(shared.parameters_sent / 2),
                            with_commas(exercise::expected(7, 4, 0).parameters_sent / 2)));
  expect_quoted("07_zero_plus_plus/quantized_gradients.md",
                fmt::format("{} bytes of the small program's gradients leave a host without qgZ, "
                            "and {} with it.",
                            with_commas(2 * hpz.gradients_sent_between),
                            with_commas(2 * qgz.gradients_sent_between)));
  expect_quoted("07_zero_plus_plus/quantized_gradients.md",
                fmt::format("= {}. Together {} bytes.", qgz.gradients_sent_between,
                            with_commas(qgz.gradients_sent_between + qgz.parameters_sent_between)));
  // Chapter 08: layers 0 and 1, and an all-reduce of what the second one makes.
  const auto pair = [](const exercise::LayerBytes& bytes) {
    return with_commas(bytes[0] + bytes[1]);
  };
  expect_quoted("08_tensor_parallel/README.md",
                fmt::format("both matrices have {} bytes, of which rank 0 holds {}, and the "
                            "all-reduce sends {} bytes",
                            pair(exercise::layer_bytes()), pair(exercise::part_bytes(2, 0)),
                            with_commas(exercise::all_reduce_bytes(16 * 30, 2, 0))));
  const exercise::Expected sequence = exercise::expected_sequence(4, 0),
                           partitioned = exercise::expected_partitioned(4, 0);
  expect_quoted(
      "08_tensor_parallel/activations.md",
      fmt::format("| {} | the 30, 960 bytes | {} |", with_commas(sequence.activations_kept),
                  with_commas(sequence.activations_sent)));
  expect_quoted("08_tensor_parallel/activations.md",
                fmt::format("| {} | both, 384 and 960 bytes | {} |",
                            with_commas(partitioned.activations_kept),
                            with_commas(partitioned.activations_sent)));
  expect_quoted(
      "08_tensor_parallel/activations.md",
      fmt::format("75 floats of 16 samples, {} bytes.", with_commas(sequence.activations_peak)));
  expect_quoted("08_tensor_parallel/activations.md",
                fmt::format("67 floats, {} bytes.", with_commas(partitioned.activations_peak)));
  // Chapter 09 on four stages.
  const auto activations = [](bool gpipe, int stage) {
    return with_commas(exercise::expected_stage(gpipe, 4, stage).activations_peak);
  };
  expect_quoted("09_pipeline/README.md", fmt::format("{} of six, {} of three.",
                                                     activations(true, 1), activations(false, 1)));
  expect_quoted("09_pipeline/README.md",
                fmt::format("{} of six, {} of four.", activations(true, 0), activations(false, 0)));
  const exercise::Expected offload = on_two(10, 0);
  expect_quoted("10_offload/README.md",
                fmt::format("8 x 1,425 = {} bytes.", with_commas(offload.file)));
  expect_quoted("10_offload/README.md",
                fmt::format("so the column `optimizer` has {}.", with_commas(offload.optimizer)));
  expect_quoted("10_offload/README.md",
                fmt::format("column `disk` has {}.", with_commas(offload.disk)));
  expect_quoted("10_offload/README.md", fmt::format("to {} bytes.", peak(10)));
}

TEST(SmallProgramArguments, AreOptional) {
  const std::string program = fmt::format("'{}/{}_minimal'", ZERO_MINIMAL_FOLDER, kChapters[0]);
  const std::string of_two = testing::output_of(program + " 2");
  EXPECT_EQ(testing::output_of(program), of_two);
  EXPECT_EQ(testing::output_of(program + " 0"), of_two);
}

}  // namespace
}  // namespace zero

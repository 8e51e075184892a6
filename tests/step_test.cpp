// The programs of the chapters: what ./run step prints with --narrate, and what --memory-timeline
// records.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include <tests/support/python.hpp>
#include <tests/support/test_folder.hpp>
#include <tools/ladder/registry.hpp>
#include <tools/models/mlp.hpp>
#include <tools/step/demo.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestFolder;

ProcessResult step(const std::string& arguments, std::int64_t narrated_width = 2) {
  std::istringstream words("step " + arguments);
  std::vector<std::string> list{std::istream_iterator<std::string>(words), {}};
  std::vector<char*> argv;
  for (std::string& word : list) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::testing::internal::CaptureStdout();
  const int code = step::run_demo(static_cast<int>(list.size()), argv.data(), "ddp",
                                  &tools::register_all_chapters, narrated_width);
  std::fflush(stdout);
  return {code, ::testing::internal::GetCapturedStdout()};
}

// The lines of the ranks below each title.
std::map<std::string, std::vector<std::string>> narrated(const std::string& mode,
                                                         std::int64_t width = 2) {
  const ProcessResult ended = step("--narrate --mode " + mode, width);
  EXPECT_EQ(ended.code, 0);
  std::map<std::string, std::vector<std::string>> told;
  std::istringstream lines(ended.said);
  std::string title;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  rank ")) {
      told[title].push_back(line.substr(std::string("  rank 0  ").size()));
    } else {
      title = line;
    }
  }
  return told;
}

constexpr auto kStart = "at the start";
constexpr auto kForward = "step 2: after forward";
constexpr auto kEnd = "step 1: after the optimizer and sync_parameters";

TEST(Narration, BeginsWithWhatItsSignsMean) {
  for (const std::int64_t width : {2, 16}) {
    const char* letter = width == 2 ? "stands for one element of" : "stands for 64 elements (or";
    const std::string said = step("--narrate --mode zero1", width).said;
    const std::string legend = said.substr(0, said.find(kStart));
    EXPECT_THAT(legend, HasSubstr(letter));
    for (const char* word : {"a dot", "Moments are", "reduction", "sync_parameters", "sent"}) {
      EXPECT_THAT(legend, HasSubstr(word));
    }
  }
}

TEST(Narration, OfChapters01To03ShowsOwners) {
  const std::string parameters = "parameters aaaa bb cccc dd   ";
  const std::string gradients = "gradients aaaa bb cccc dd   ";
  EXPECT_THAT(narrated("zero1")[kEnd],
              ElementsAre(parameters + gradients + "moments aaaa .. .... ..",
                          parameters + gradients + "moments .... .. cccc ..",
                          parameters + gradients + "moments .... bb .... dd"));
  EXPECT_THAT(narrated("zero2")[kEnd],
              ElementsAre(parameters + "gradients aaaa .. .... ..   moments aaaa .. .... ..",
                          parameters + "gradients .... .. cccc ..   moments .... .. cccc ..",
                          parameters + "gradients .... bb .... dd   moments .... bb .... dd"));
  EXPECT_THAT(
      narrated("zero3")[kEnd],
      ElementsAre(
          "parameters aaaa .. .... ..   gradients aaaa .. .... ..   moments aaaa .. .... ..",
          "parameters .... .. cccc ..   gradients .... .. cccc ..   moments .... .. cccc ..",
          "parameters .... bb .... dd   gradients .... bb .... dd   moments .... bb .... dd"));
}

// A letter is 64 elements here. The buffer of a layer is 256 elements of weight and 16 of bias; two
// thirds of an alignment are padding at its end.
TEST(Narration, OfChapter04ShowsThePiecesOfTensors) {
  auto told = narrated("tensor_zero3", /*width=*/16);
  EXPECT_THAT(
      told[kStart],
      ElementsAre("parameters aa.. . cc.. .   gradients .... . .... .   moments .... . .... .",
                  "parameters ..aa . ..cc .   gradients .... . .... .   moments .... . .... .",
                  "parameters .... b .... d   gradients .... . .... .   moments .... . .... ."));
  EXPECT_THAT(
      told[kForward],
      ElementsAre("parameters aa.. . cccc d   gradients .... . .... .   moments aa.. . cc.. .",
                  "parameters ..aa . cccc d   gradients .... . .... .   moments ..aa . ..cc .",
                  "parameters .... b cccc d   gradients .... . .... .   moments .... b .... d"));
  EXPECT_THAT(
      told[kEnd],
      ElementsAre("parameters aa.. . cc.. .   gradients aa.. . cc.. .   moments aa.. . cc.. .",
                  "parameters ..aa . ..cc .   gradients ..aa . ..cc .   moments ..aa . ..cc .",
                  "parameters .... b .... d   gradients .... b .... d   moments .... b .... d"));
  EXPECT_THAT(
      narrated("tensor_zero2", /*width=*/16)[kEnd],
      ElementsAre("parameters aaaa b cccc d   gradients aa.. . cc.. .   moments aa.. . cc.. .",
                  "parameters aaaa b cccc d   gradients ..aa . ..cc .   moments ..aa . ..cc .",
                  "parameters aaaa b cccc d   gradients .... b .... d   moments .... b .... d"));
}

json memory_timeline_of(const std::string& mode, const TestFolder& folder) {
  const std::string path = (folder / "memory_timeline.json").string();
  const ProcessResult ended = step("--memory-timeline " + path + " --mode " + mode);
  EXPECT_EQ(ended.code, 0) << ended.said;
  return json::parse(read_bytes(path));
}

class StepFilm : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Chapters, StepFilm,
                         ::testing::Values("ddp", "zero1", "zero2", "zero3", "tensor_zero3"),
                         [](const auto& info) { return info.param; });

TEST_P(StepFilm, IsOfTheThirdStepWithItsPhasesAndWithoutGaps) {
  const TestFolder folder;
  const json memory_timeline = memory_timeline_of(GetParam(), folder);
  EXPECT_EQ(memory_timeline.at("world_size"), 2);
  EXPECT_EQ(memory_timeline.at("model"), "wide");
  ASSERT_EQ(memory_timeline.at("modes").size(), 1U);
  const json& mode = memory_timeline["modes"][0];
  EXPECT_EQ(mode.at("mode"), GetParam());
  std::vector<std::string> labels;
  for (const json& mark : mode.at("marks")) labels.push_back(mark.at("label"));
  EXPECT_THAT(labels, ElementsAre("forward", "backward", "optimizer", "sync"));
  const json& samples = mode.at("samples");
  ASSERT_GT(samples.size(), 2U);
  // The moments are there from the first sample on: it is not the first step.
  EXPECT_EQ(samples.front().at("optimizer"), samples.back().at("optimizer"));
  const auto has_gradients = [](const json& sample) { return sample.value("gradients", 0) > 0; };
  EXPECT_FALSE(std::all_of(samples.begin(), samples.end(), has_gradients))
      << "they are cleared before forward";
  double last = 0;
  for (const json& sample : samples) {
    EXPECT_GE(sample.at("t").get<double>(), last);
    last = sample.at("t");
    std::int64_t sum = 0;
    for (std::size_t c = 0; c < memory::kCategories; ++c) {
      const auto name = memory::name(static_cast<memory::Category>(c));
      sum += sample.value(std::string(name), std::int64_t{0});
    }
    EXPECT_EQ(sum, sample.at("total"));
  }
  EXPECT_GE(last, mode.at("marks").back().at("t").get<double>()) << "it ends too early";
}

TEST(StepFilm, IsDrawn) {
  const TestFolder folder;
  if (!python_has({"matplotlib"})) GTEST_SKIP() << python() << " has no matplotlib";
  memory_timeline_of("zero3", folder);
  const ProcessResult ended = run_python("tools/plots/plot_memory_timeline.py '" +
                                         (folder / "memory_timeline.json").string() + "'");
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.said, HasSubstr("wrote"));
  for (const char* name : {"memory_timeline.png", "memory_timeline.svg"}) {
    ASSERT_TRUE(std::filesystem::exists(folder / name)) << ended.said;
    EXPECT_GT(std::filesystem::file_size(folder / name), 5000U);
  }
}

TEST(Step, PrintsItsHelpAndTrainsNothing) {
  const ProcessResult ended = step("--help");
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.said, HasSubstr("--narrate"));
  EXPECT_THAT(ended.said, ::testing::Not(HasSubstr("loss")));
}

TEST(Step, RefusesAFilmThatCannotBeWritten) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(step("--memory-timeline /proc/none/memory_timeline.json").code, 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("/proc/none"));
}

}  // namespace
}  // namespace zero::testing

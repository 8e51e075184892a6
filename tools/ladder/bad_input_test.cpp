// What the ladder program does with input that is wrong: a message that says what would be right,
// an exit code that is not 0, and not one file written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>
#include <tests/support/port.hpp>
#include <zero/data/token_file.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::ladder {
namespace {

using ::testing::AllOf;
using testing::BadInput;
using testing::expect_refused_before_writing;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

class BadArguments : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadArguments, AreRefusedBeforeAnythingIsWritten) {
  expect_refused_before_writing(GetParam(), GetParam().arguments);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadArguments,
    ::testing::Values(
        BadInput{
            "Mode", "--model tiny --modes ddp,zer1", {"unknown mode 'zer1'; known modes: ddp"}},
        BadInput{"NoNumberAsRate", "--model tiny --lr nan", {"--lr is nan"}},
        BadInput{"NegativeSeed", "--model tiny --seed -1", {"--seed", "'-1' is no seed"}},
        BadInput{
            "SeedOf65Bits",
            "--model tiny --seed 18446744073709551616",
            {"'18446744073709551616' is no seed: a whole number from 0 to 1844674407370955161"}},
        BadInput{"TimeoutIsNoNumber",
                 "--model tiny --timeout nan",
                 {"--timeout", "'nan' is not a number"}},
        BadInput{"EndlessTimeout", "--model tiny --timeout inf", {"--timeout", "inf not in range"}},
        BadInput{"NegativeTimeout", "--model tiny --timeout -5", {"--timeout", "-5 not in range"}},
        BadInput{"RateBelowNothing", "--model tiny --lr -1", {"--lr is -1"}},
        BadInput{"EngineSetting",
                 "--model tiny --modes engine3:lookahaed=2",
                 {"unknown key 'lookahaed'; known keys: ", "lookahead"}},
        BadInput{"Variant",
                 "--model tiny --modes zero1:naiv",
                 {"unknown mode 'zero1:naiv'", "zero1:naive"}},
        BadInput{"Model",
                 "--model smollm2-350m",
                 {"unknown model 'smollm2-350m'; known models: llama-1.5b"}},
        BadInput{"Task",
                 "--model tiny --task review",
                 {"unknown task 'review'; known tasks: text, reviews"}},
        BadInput{"Dtype",
                 "--model tiny --dtype fp3",
                 {"unknown dtype 'fp3'; known dtypes: fp32, bf16, fp16"}},
        BadInput{"Device", "--model tiny --device cup", {"unknown device 'cup'", "cpu"}},
        BadInput{"Ownership", "--model tiny --ownership siez", {"'siez'", "size"}},
        BadInput{"Option",
                 "--model tiny --step 3",
                 {"unknown option '--step'; known options: --help, --task"}},
        BadInput{"OptionWithEquals", "--seqlen=16", {"unknown option '--seqlen'", "--seq-len"}},
        BadInput{"StrayWord", "--model tiny --steps 2 extra", {"'extra' is not expected here"}},
        BadInput{"NoRanks", "--model tiny --nproc 0", {"--nproc", "Value 0 not in range"}},
        BadInput{"NegativeSteps", "--model tiny --steps -3", {"--steps", "Value -3 not in range"}},
        BadInput{"StepsAreNoNumber", "--model tiny --steps many", {"--steps", "many"}},
        BadInput{
            "SequenceOfOne", "--model tiny --seq-len 1", {"--seq-len", "Value 1 not in range"}},
        BadInput{"BatchOfNone", "--model tiny --batch 0", {"--batch", "Value 0 not in range"}},
        BadInput{"ModelAndWeights", "--model tiny --weights .", {"--model", "--weights"}},
        BadInput{"NoWeights",
                 "--weights /nowhere/at/all",
                 {"/nowhere/at/all/config.json cannot be read", "save_pretrained"}},
        BadInput{"NoData", kQuick + "--data /nowhere/text.txt", {"/nowhere/text.txt"}},
        BadInput{"NoReviews", kQuick + "--task reviews --data /nowhere/r.csv", {"/nowhere/r.csv"}},
        BadInput{"JsonBelowAFile",
                 kQuick + "--json tools/CMakeLists.txt/x.json",
                 {"cannot write 'tools/CMakeLists.txt/x.json'", "Not a directory"}},
        BadInput{"JsonIsAFolder", kQuick + "--json ladder/", {"it names a folder"}},
        BadInput{"SaveBelowAFile",
                 kQuick + "--save tools/CMakeLists.txt/weights",
                 {"cannot write 'tools/CMakeLists.txt/weights/config.json'"}},
        BadInput{"TraceBelowAFile",
                 kQuick + "--trace tools/CMakeLists.txt/t.json",
                 {"cannot write 'tools/CMakeLists.txt/t.json'"}},
        BadInput{"TraceIsAFolder", kQuick + "--trace ladder/", {"it names a folder"}},
        BadInput{"DoesNotFit",
                 "--model smollm2-360m --assume-free-memory 4096",
                 {"smollm2-360m on 2 ranks needs about", "4.0 GiB are free",
                  "smollm2-135m, smollm2-360m, tiny"}},
        BadInput{"NothingFits",
                 "--assume-free-memory 100",
                 {"smollm2-360m needs about", "smollm2-135m needs about", "tiny needs about",
                  "no model fits: 0.1 GiB are free"}}),
    [](const auto& info) { return info.param.name; });

TEST(EmptyValues, AreRefusedForEveryOptionThatNamesSomething) {
  for (const std::string given :
       {"--checkpoint ''", "--resume ''", "--save ''", "--weights ''", "--data ''", "--json ''",
        "--trace ''", "--memory-timeline ''", "--json="}) {
    const std::string option = given.substr(0, given.find_first_of(" ="));
    expect_refused_before_writing(BadInput{"", "", {option + " needs a name or a value"}},
                                  kQuick + "--modes ddp " + given);
  }
}

// Runs with `arguments` and expects a refusal that changes nothing in `folder`.
void expect_place_refused(const TestFolder& folder, const std::string& arguments,
                          const std::string& message) {
  const auto before = folder.listing();
  const ProcessResult ended =
      run_ladder(folder, "--steps 1 --seq-len 16 --no-compute-alone --modes ddp " + arguments);
  EXPECT_EQ(ended.code, 1) << arguments << "\n" << ended.said;
  EXPECT_THAT(ended.said, HasSubstr(message)) << arguments;
  EXPECT_EQ(folder.listing(), before) << arguments;
}

TEST(Paths, OfOutputsMayNotBeThoseOfInputs) {
  const TestFolder folder;
  const auto at = [&](const std::string& name) { return " '" + (folder / name).string() + "' "; };
  const std::string text(400, 'a');
  folder.write("text.txt", text);
  std::filesystem::create_symlink(folder / "text.txt", folder / "link");
  std::filesystem::create_directory(folder / "w");
  const std::string config = nn::to_hugging_face_json(nn::preset("tiny")).dump();
  folder.write("w/config.json", config);
  const std::string over = "which is read: name another place";
  for (const std::string data : {"text.txt", "link", ""}) {
    for (const std::string json : {"text.txt", "link"}) {
      expect_place_refused(folder, "--model tiny --data" + at(data) + "--json" + at(json), over);
    }
  }
  folder.write("t.ddp.rank1.json", text);
  expect_place_refused(folder,
                       "--model tiny --data" + at("t.ddp.rank1.json") + "--trace" + at("t.json"),
                       "over --data " + (folder / "t.ddp.rank1.json").string());
  for (const std::string& output :
       {"--save" + at("w"), "--save" + at("w/"), "--save" + at("w/../w"),
        "--json" + at("w/config.json"), "--memory-timeline" + at("w/config.json"),
        "--checkpoint" + at("w")}) {
    expect_place_refused(folder, "--weights" + at("w") + output, over);
  }
  EXPECT_EQ(testing::read_bytes(folder / "text.txt"), text);
  EXPECT_EQ(testing::read_bytes(folder / "w/config.json"), config);
}

TEST(Paths, OfOutputsDiffer) {
  const TestFolder folder;
  const auto at = [&](const std::string& name) { return " '" + (folder / name).string() + "' "; };
  const std::string same = "would be written to the same place: name two";
  for (const std::string& outputs :
       {"--json" + at("x.json") + "--trace" + at("x.json"),
        "--json" + at("x.json") + "--memory-timeline" + at("none/../x.json"),
        "--save" + at("s") + "--checkpoint" + at("s"), "--save" + at("s") + "--json" + at("s"),
        "--save" + at("s") + "--json" + at("s/config.json"),
        "--checkpoint" + at("c") + "--json" + at("c/manifest.json")}) {
    expect_place_refused(folder, "--model tiny " + outputs, same);
  }
  expect_place_refused(folder,
                       "--model tiny --json" + at("t.ddp.rank0.json") + "--trace" + at("t.json"),
                       "over --json " + (folder / "t.ddp.rank0.json").string());
}

TEST(Paths, MayLieInOneFolder) {
  const TestFolder folder;
  const auto at = [&](const std::string& name) { return " '" + (folder / name).string() + "' "; };
  for (int again = 0; again < 2; ++again) {
    const ProcessResult ended =
        run_ladder(folder, kQuick + "--modes ddp --save" + at("s") + "--json" +
                               at("s/ladder.json") + "--trace" + at("s/t.json") +
                               "--memory-timeline" + at("s/memory_timeline.json"));
    EXPECT_EQ(ended.code, 0) << ended.said;
  }
}

// The variables of a launcher, as long as this lives.
class Launched {
 public:
  Launched(int rank, int world_size) {
    set("RANK", rank);
    set("WORLD_SIZE", world_size);
    set("MASTER_PORT", zero::testing::free_port());
  }
  ~Launched() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) ::unsetenv(name);
  }

 private:
  static void set(const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), /*replace=*/1);
  }
};

TEST(LaunchedRank, IsNotAskedForAnotherNumberOfRanks) {
  const BadInput input{"", "", {"--nproc 4: this process is rank 0 of 1 by the variables of a"}};
  {
    const Launched alone(/*rank=*/0, /*world_size=*/1);
    expect_refused_before_writing(input, kQuick + "--modes ddp --nproc 4");
  }
  for (const std::string asked : {"", "--nproc 1"}) {
    const TestFolder folder;
    const Launched alone(/*rank=*/0, /*world_size=*/1);
    const ProcessResult one = run_ladder(folder, kQuick + "--modes ddp " + asked);
    EXPECT_EQ(one.code, 0) << one.said;
    EXPECT_THAT(one.said, HasSubstr("on 1 ranks"));
  }
}

TEST(Memory, TheNextSmallerModelIsTakenAndNamed) {
  const TestFolder folder;
  const ProcessResult ended = run_ladder(
      folder, "--assume-free-memory 2000 --steps 1 --seq-len 16 --modes ddp --no-compute-alone");
  EXPECT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, AllOf(HasSubstr("smollm2-360m needs about"),
                                HasSubstr("2.0 GiB are free: trying the next smaller model"),
                                HasSubstr("smollm2-135m needs about"),
                                HasSubstr("tiny as language model on 2 ranks")));
}

// Runs with --data FILE and expects a refusal that writes nothing beside FILE.
void expect_refused(const TestFolder& folder, const std::string& path, const std::string& more,
                    const std::string& message) {
  const auto before = folder.listing();
  const ProcessResult ended = run_ladder(folder, kQuick + "--data '" + path + "' " + more);
  EXPECT_EQ(ended.code, 1) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr(message));
  EXPECT_THAT(ended.said, ::testing::Not(HasSubstr("rank 0"))) << "found out too late, by a rank";
  EXPECT_EQ(folder.listing(), before);
}

TEST(BadData, EmptyFile) {
  const TestFolder folder;
  const std::string path = folder.write("empty.txt", "");
  expect_refused(folder, path, "", "empty.txt is empty");
  expect_refused(folder, path, "--task reviews", "empty.txt is empty");
}

TEST(BadData, SequenceLongerThanTheText) {
  const TestFolder folder;
  const std::string path = folder.write("short.txt", "ten bytes.");
  expect_refused(folder, path, "", "the text has 10 tokens; one sequence of 16 takes 17");
}

TEST(BadData, FewerSamplesThanOneStepTakes) {
  const TestFolder folder;
  const std::string path = folder.write("text.txt", std::string(40, 'a'));
  expect_refused(folder, path, "--batch 4",
                 "the data set has 2 samples, one step over all ranks "
                 "takes 8");
}

TEST(BadData, VocabularyLargerThanTheModels) {
  const TestFolder folder;
  std::vector<std::int64_t> ids(200, 299);
  data::write_token_file(folder / "t", data::TokenStream::from_ids(ids, /*vocabulary=*/300));
  expect_refused(folder, (folder / "t").string(), "",
                 "the data has a vocabulary of 300 tokens, the model tiny one of 256");
}

TEST(BadData, TokenFileOfTheOtherKind) {
  const TestFolder folder;
  std::vector<std::int64_t> ids(200, 9);
  data::write_token_file(folder / "stream", data::TokenStream::from_ids(ids, /*vocabulary=*/10));
  const std::vector<data::Record> records(9, data::Record{1, {3, 4}});
  data::write_token_file(folder / "records",
                         data::Records::from(records, /*classes=*/5, /*vocabulary=*/10));
  expect_refused(folder, (folder / "stream").string(), "--task reviews", "stream");
  expect_refused(folder, (folder / "records").string(), "",
                 "records holds labelled texts, which --task reviews trains on");
}

TEST(BadData, DamagedTokenFile) {
  const TestFolder folder;
  std::vector<std::int64_t> ids(200, 9);
  data::write_token_file(folder / "t", data::TokenStream::from_ids(ids, /*vocabulary=*/10));
  std::string bytes = testing::read_bytes(folder / "t");
  bytes[200] = '\x08';
  expect_refused(folder, folder.write("t", bytes), "", "damaged");
}

TEST(BadData, TokenFileWhoseFirstBytesAreDamaged) {
  const TestFolder folder;
  std::vector<std::int64_t> ids(200, 9);
  data::write_token_file(folder / "t", data::TokenStream::from_ids(ids, /*vocabulary=*/10));
  const std::string bytes = "z" + testing::read_bytes(folder / "t").substr(1);
  const std::string message = "is laid out as a token file, but does not begin with ZEROTOK";
  expect_refused(folder, folder.write("t", bytes), "", message);
  expect_refused(folder, (folder / "t").string(), "--task reviews", message);
}

TEST(BadData, TooManyClasses) {
  const TestFolder folder;
  const std::vector<data::Record> records(9, data::Record{6, {3, 4}});
  data::write_token_file(folder / "r",
                         data::Records::from(records, /*classes=*/7, /*vocabulary=*/10));
  expect_refused(folder, (folder / "r").string(), "--task reviews", "has 7 classes");
}

TEST(BadData, Parquet) {
  const TestFolder folder;
  const std::string path = folder.write("reviews.csv", "PAR1....PAR1");
  expect_refused(folder, path, "--task reviews", "is a Parquet file: make a token file");
}

}  // namespace
}  // namespace zero::ladder

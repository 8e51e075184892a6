// What the ladder program does with input that is wrong: a message that says what would be right,
// an exit code that is not 0, and not one file written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <zero/data/tokens.hpp>

#include "test_bad_input.hpp"
#include "test_program.hpp"

namespace zero::ladder {
namespace {

using ::testing::AllOf;
using testing::BadInput;
using testing::Ended;
using testing::expect_refused_before_writing;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::listing;
using testing::run_ladder;
using testing::TestFolder;
using testing::written;

class BadArguments : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadArguments, AreRefusedBeforeAnythingIsWritten) {
  expect_refused_before_writing(GetParam(), GetParam().arguments);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadArguments,
    ::testing::Values(
        BadInput{"Mode", "--model tiny --modes ddp,zer1", {"'zer1'; did you mean 'zero1'?"}},
        BadInput{"NoNumberAsRate", "--model tiny --lr nan", {"--lr is nan"}},
        BadInput{"RateBelowNothing", "--model tiny --lr -1", {"--lr is -1"}},
        BadInput{"EngineSetting",
                 "--model tiny --modes engine3:lookahaed=2",
                 {"did you mean 'lookahead'?"}},
        BadInput{"Variant", "--model tiny --modes zero1:naiv", {"did you mean 'zero1:naive'?"}},
        BadInput{"Model",
                 "--model smollm2-350m",
                 {"unknown model 'smollm2-350m'; did you mean 'smollm2-360m'?", "tiny"}},
        BadInput{"Task", "--model tiny --task review", {"did you mean 'reviews'?"}},
        BadInput{"Dtype", "--model tiny --dtype fp3", {"did you mean 'fp32'?"}},
        BadInput{"Device", "--model tiny --device cup", {"unknown device 'cup'", "cpu"}},
        BadInput{"Ownership", "--model tiny --ownership siez", {"'siez'", "size"}},
        BadInput{"Option",
                 "--model tiny --step 3",
                 {"unknown option '--step'; did you mean '--steps'?"}},
        BadInput{"OptionWithEquals", "--seqlen=16", {"'--seqlen'; did you mean '--seq-len'?"}},
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
                 kQuick + "--json ladder/CMakeLists.txt/x.json",
                 {"cannot write 'ladder/CMakeLists.txt/x.json'", "Not a directory"}},
        BadInput{"JsonIsAFolder", kQuick + "--json ladder/", {"it names a folder"}},
        BadInput{"SaveBelowAFile",
                 kQuick + "--save ladder/CMakeLists.txt/weights",
                 {"cannot write 'ladder/CMakeLists.txt/weights/config.json'"}},
        BadInput{"TraceBelowAFile",
                 kQuick + "--trace ladder/CMakeLists.txt/t.json",
                 {"cannot write 'ladder/CMakeLists.txt/t.json'"}},
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

TEST(Memory, TheNextSmallerModelIsTakenAndNamed) {
  const TestFolder folder;
  const Ended ended = run_ladder(
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
  const auto before = listing(folder);
  const Ended ended = run_ladder(folder, kQuick + "--data '" + path + "' " + more);
  EXPECT_EQ(ended.code, 1) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr(message));
  EXPECT_THAT(ended.said, ::testing::Not(HasSubstr("rank 0"))) << "found out too late, by a rank";
  EXPECT_EQ(listing(folder), before);
}

TEST(BadData, EmptyFile) {
  const TestFolder folder;
  const std::string path = written(folder, "empty.txt", "");
  expect_refused(folder, path, "", "empty.txt is empty");
  expect_refused(folder, path, "--task reviews", "empty.txt is empty");
}

TEST(BadData, SequenceLongerThanTheText) {
  const TestFolder folder;
  const std::string path = written(folder, "short.txt", "ten bytes.");
  expect_refused(folder, path, "", "the text has 10 tokens; one sequence of 16 takes 17");
}

TEST(BadData, FewerSamplesThanOneStepTakes) {
  const TestFolder folder;
  const std::string path = written(folder, "text.txt", std::string(40, 'a'));
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
  std::string bytes = testing::contents_of(folder / "t");
  bytes[200] = '\x08';
  expect_refused(folder, written(folder, "t", bytes), "", "damaged");
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
  const std::string path = written(folder, "reviews.csv", "PAR1....PAR1");
  expect_refused(folder, path, "--task reviews", "is a Parquet file: make a token file");
}

}  // namespace
}  // namespace zero::ladder

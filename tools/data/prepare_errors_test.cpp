// What prepare.py refuses, and that it says why and leaves no file.
#include <tests/support/prepare.hpp>

namespace zero::data {
namespace {

using testing::kReviewsCsv;
using testing::kTokenizer;
using testing::mentions;
using PrepareErrors = testing::Prepare;

TEST_F(PrepareErrors, RefusesBadTokenizers) {
  if (!has("tokenizers")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py --tokenizer (see above how to enable it)";
  }
  folder_.write("tokenizer.json", kTokenizer);
  folder_.write("bad.json", "{}");
  folder_.write("r.csv", kReviewsCsv);
  const auto with = [&](const std::string& options) {
    return prepare(fmt::format("reviews --input {} --output {} --tokenizer {}", path("r.csv"),
                               path("r.tokens"), options));
  };
  EXPECT_TRUE(mentions(with(path("bad.json")), "is not a tokenizer.json"));
  EXPECT_TRUE(mentions(with(path("no.json")), "No such file"));
  EXPECT_TRUE(
      mentions(with(path("tokenizer.json") + " --pad-token nothing"), "no token 'nothing'"));
  EXPECT_TRUE(mentions(with("''"), "a name is needed, and this is empty"));
}

// A tokenizer.json may be read well and still not fit what it is used for.
TEST_F(PrepareErrors, RefusesTokenizersThatContradictThemselves) {
  if (!has("tokenizers")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py --tokenizer (see above how to enable it)";
  }
  folder_.write("r.csv", "label,text\n4,coffee\n");  // a word that the tokenizer does not know
  const auto with = [&](const std::string& old_part, const std::string& new_part) {
    std::string text = kTokenizer;
    text.replace(text.find(old_part), old_part.size(), new_part);
    folder_.write("t.json", text);
    const std::string said = prepare(fmt::format("reviews --input {} --output {} --tokenizer {}",
                                                 path("r.csv"), path("r.tokens"), path("t.json")));
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "r.tokens"));
    return said;
  };
  const std::string ids = "but its vocabulary has the ids 0 to 10";
  EXPECT_TRUE(mentions(with("\"ids\": [2]", "\"ids\": [99999]"), "makes token 99999, " + ids));
  EXPECT_TRUE(mentions(with("\"pad_id\": 1,", "\"pad_id\": 11,"), "pads with token 11, " + ids));
  EXPECT_TRUE(mentions(with("\"unk_token\": \"[UNK]\"", "\"unk_token\": \"[NONE]\""),
                       "t.json cannot encode the input"));
}

TEST_F(PrepareErrors, RefusesBadReviews) {
  const auto with = [&](const std::string& name, const std::string& content) {
    folder_.write(name, content);
    const std::string said = prepare(
        fmt::format("reviews --bytes --input {} --output {}", path(name), path("r.tokens")));
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "r.tokens"));
    return said;
  };
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n5,x\n"), "line 2: '5' is no label: 0 to 4"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\nnan,x\n"), "'nan' is no label"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1.5,x\n"), "'1.5' is no label"));
  EXPECT_TRUE(mentions(with("r.csv", "0,x\n"), "line 1: '0' is no label: 1 to 5"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1\n"), "1 columns, the first line has 2"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1,\"x\n"), "unexpected end of data"));
  EXPECT_TRUE(mentions(with("r.csv", "mark,body\n1,x\n"), "columns 'text' and 'label'"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n"), "holds no reviews"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1,\xFF\n"), "not UTF-8"));
  EXPECT_TRUE(mentions(with("r.csv", ""), "is empty"));
  EXPECT_TRUE(mentions(with("r.txt", "text"), "files named .csv"));
  EXPECT_TRUE(mentions(with("r.jsonl", "{\"label\": 1}\n"), "columns 'text' and 'label'"));
  EXPECT_TRUE(mentions(with("r.jsonl", "{\"label\": 1, \"text\": 3}\n"), "text of a review is"));
  EXPECT_TRUE(mentions(with("r.jsonl", "{\"label\": 1, \"text\": \"\\ud800\"}\n"), "no valid"));
  EXPECT_TRUE(mentions(with("r.jsonl", "[1]\n"), "must be an object"));
  const auto with_label = [&](const std::string& label) {
    return with("r.jsonl", "{\"label\": " + label + ", \"text\": \"x\"}\n");
  };
  EXPECT_TRUE(mentions(with_label("[[4]]"), "line 1: a list is no label: 0 to 4 are"));
  EXPECT_TRUE(mentions(with_label("true"), "line 1: True is no label"));
  EXPECT_TRUE(mentions(with_label("1e400"), "line 1: inf is no label"));
  EXPECT_TRUE(mentions(with_label(std::string(400, '1')), "line 1: 1111111111"));
  EXPECT_TRUE(mentions(with_label(std::string(9999, '1')), "line 1: "));
  constexpr int kLevels = 200'000;
  EXPECT_TRUE(mentions(with_label(std::string(kLevels, '[') + std::string(kLevels, ']')),
                       "line 1: its JSON is nested too deeply"));
  EXPECT_TRUE(mentions(with("r.jsonl", "\n{oops\n"), "line 2: not JSON"));
}

TEST_F(PrepareErrors, RefusesBadParquet) {
  if (!has("pyarrow")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py with Parquet (see above how to enable it)";
  }
  const auto refusal = [&] {
    const std::string said = prepare(
        fmt::format("reviews --bytes --input {} --output {}", path("r.parquet"), path("r.tokens")));
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "r.tokens"));
    return said;
  };
  folder_.write("r.parquet", "PAR1 it is not");
  EXPECT_TRUE(mentions(refusal(), "cannot be read as Parquet"));
  const auto written = [&](const std::string& columns) {
    const std::string make = fmt::format(
        "-c 'import pyarrow as a, pyarrow.parquet as p; p.write_table(a.table({}), \"{}\")'",
        columns, (folder_ / "r.parquet").string());
    const testing::ProcessResult made = testing::run_python(make);
    ASSERT_EQ(made.code, 0) << made.said;
  };
  written("{\"mark\": [1], \"text\": [\"x\"]}");
  EXPECT_TRUE(mentions(refusal(), "columns 'text' and 'label'"));
  EXPECT_TRUE(mentions(refusal(), "found: mark, text"));
  written("{\"label\": [1, 7], \"text\": [\"x\", \"y\"]}");
  EXPECT_TRUE(mentions(refusal(), "row 2: 7 is no label"));
  written("{\"label\": [1], \"text\": [b\"x\"]}");
  EXPECT_TRUE(mentions(refusal(), "row 1: the text of a review is missing"));
}

TEST_F(PrepareErrors, RefusesBadTextAndOptions) {
  folder_.write("empty.txt", "");
  folder_.write("binary.txt", "\xFF\xFE");
  folder_.write("good.txt", "text");
  std::filesystem::create_directories(folder_ / "none");
  const auto with = [&](const std::string& options) {
    const std::string said = prepare("text --bytes " + options);
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    return said;
  };
  const std::string output = " --output " + path("t.tokens");
  EXPECT_TRUE(mentions(with("--input " + path("no.txt") + output), "does not exist"));
  EXPECT_TRUE(mentions(with("--input " + path("empty.txt") + output), "is empty"));
  EXPECT_TRUE(mentions(with("--input " + path("binary.txt") + output), "is not UTF-8"));
  EXPECT_TRUE(mentions(with("--input " + path("none") + output), "has no *.txt or *.md"));
  const std::string good = "--input " + path("good.txt");
  EXPECT_TRUE(mentions(with(good + " --output " + path("no/t.tokens")), "No such file"));
  EXPECT_TRUE(mentions(with(good + output + " --validation 1.5"), "not between 0 and 1"));
  EXPECT_TRUE(mentions(with(good + output + " --validation 0.01"), "leaves one part empty"));
  EXPECT_TRUE(mentions(with(good + output + " --tokenizer x"), "not allowed with"));
  EXPECT_TRUE(mentions(with(good + " --output ''"), "a name is needed, and this is empty"));
  EXPECT_TRUE(mentions(with("--input ''" + output), "a name is needed, and this is empty"));
  EXPECT_TRUE(
      mentions(with(good + " --output " + path("none")), "none is a folder, and a file is"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.tokens"));
}

TEST_F(PrepareErrors, RefusesOutputsThatAreInputs) {
  folder_.write("notes/a.txt", "first");
  folder_.write("r.csv", kReviewsCsv);
  const auto refusal = [&](const std::string& arguments) {
    const std::string said = prepare(arguments);
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    return said;
  };
  const std::string over = "would be written over an input, name another";
  const std::string text = "text --bytes --input ";
  EXPECT_TRUE(mentions(
      refusal(text + path("notes/a.txt") + " --output " + path("notes/../notes/a.txt")), over));
  EXPECT_TRUE(mentions(refusal(text + path("notes") + " --output " + path("notes/a.txt")), over));
  EXPECT_TRUE(mentions(
      refusal("reviews --bytes --input " + path("r.csv") + " --output " + path("r.csv")), over));
  EXPECT_EQ(testing::read_bytes(folder_ / "notes/a.txt"), "first");
  EXPECT_EQ(testing::read_bytes(folder_ / "r.csv"), kReviewsCsv);
}

// The second of two files cannot be written: then the first is not either.
TEST_F(PrepareErrors, LooksAtBothOutputsFirst) {
  folder_.write("a.txt", "0123456789");
  std::filesystem::create_directories(folder_ / "t.validation.tokens");
  EXPECT_TRUE(mentions(prepare(fmt::format("text --bytes --input {} --output {} --validation 0.5",
                                           path("a.txt"), path("t.tokens"))),
                       "t.validation.tokens is a folder"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.train.tokens"));
}

TEST_F(PrepareErrors, RefusesSeedsThatDoNotFit64Bits) {
  folder_.write("r.csv", kReviewsCsv);
  for (const std::string seed : {"18446744073709551616", "-1"}) {
    EXPECT_TRUE(mentions(prepare(fmt::format("reviews --bytes --input {} --output {} --seed={}",
                                             path("r.csv"), path("r.tokens"), seed)),
                         seed + " is not from 0 to 2^64 - 1"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "r.tokens"));
}

}  // namespace
}  // namespace zero::data

// What prepare.py refuses, and that it says why and leaves no file.
#include <zero/data/test_prepare.hpp>

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
  EXPECT_TRUE(mentions(with("r.jsonl", "\n{oops\n"), "line 2: not JSON"));
}

TEST_F(PrepareErrors, RefusesBadParquet) {
  if (!has("pyarrow")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py with Parquet (see above how to enable it)";
  }
  folder_.write("r.parquet", "PAR1 it is not");
  const std::string said = prepare(
      fmt::format("reviews --bytes --input {} --output {}", path("r.parquet"), path("r.tokens")));
  EXPECT_TRUE(mentions(said, "cannot be read as Parquet")) << said;
  EXPECT_FALSE(mentions(said, "Traceback")) << said;
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
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.tokens"));
}

}  // namespace
}  // namespace zero::data

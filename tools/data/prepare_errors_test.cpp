// What prepare.py refuses, and that it says why and leaves no file.
#include <gmock/gmock.h>

#include <tests/support/prepare.hpp>

namespace zero::data {
namespace {

using ::testing::HasSubstr;
using testing::kReviewsCsv;
using testing::kTokenizer;

template <class Fixture>
class Refusing : public Fixture {
 protected:
  /// `said` refuses something in a sentence of its own, and there is no file.
  void expect_refused(const std::string& said, const std::string& message) const {
    EXPECT_THAT(said, HasSubstr(message));
    EXPECT_THAT(said, ::testing::Not(HasSubstr("Traceback")));
    EXPECT_FALSE(std::filesystem::exists(this->folder_ / "r.tokens"));
    EXPECT_FALSE(std::filesystem::exists(this->folder_ / "t.tokens"));
  }
};
using PrepareErrors = Refusing<testing::Prepare>;
using PrepareTokenizerErrors = Refusing<testing::PrepareWithTokenizers>;

TEST_F(PrepareTokenizerErrors, RefusesBadTokenizers) {
  folder_.write("bad.json", "{}");
  const auto expect = [&](const std::string& options, const std::string& message) {
    expect_refused(prepare(fmt::format("reviews --input {} --output {} --tokenizer {}",
                                       path("r.csv"), path("r.tokens"), options)),
                   message);
  };
  expect(path("bad.json"), "is not a tokenizer.json");
  expect(path("no.json"), "No such file");
  expect(path("tokenizer.json") + " --pad-token nothing", "no token 'nothing'");
  expect("''", "a name is needed, and this is empty");
  // A tokenizer.json may be read well and still not fit what it is used for.
  folder_.write("r.csv", "label,text\n4,coffee\n");  // a word that the tokenizer does not know
  const auto expect_with = [&](const std::string& old_part, const std::string& new_part,
                               const std::string& message) {
    std::string text = kTokenizer;
    text.replace(text.find(old_part), old_part.size(), new_part);
    folder_.write("t.json", text);
    expect(path("t.json"), message);
  };
  const std::string ids = "but its vocabulary has the ids 0 to 10";
  expect_with("\"ids\": [2]", "\"ids\": [99999]", "makes token 99999, " + ids);
  expect_with("\"pad_id\": 1,", "\"pad_id\": 11,", "pads with token 11, " + ids);
  expect_with("\"unk_token\": \"[UNK]\"", "\"unk_token\": \"[NONE]\"",
              "t.json cannot encode the input");
}

TEST_F(PrepareErrors, RefusesBadReviews) {
  const auto expect = [&](const std::string& name, const std::string& content,
                          const std::string& message) {
    folder_.write(name, content);
    expect_refused(prepare_reviews(path(name)), message);
  };
  expect("r.csv", "label,text\n5,x\n", "line 2: '5' is no label: 0 to 4");
  expect("r.csv", "label,text\nnan,x\n", "'nan' is no label");
  expect("r.csv", "label,text\n1.5,x\n", "'1.5' is no label");
  expect("r.csv", "0,x\n", "line 1: '0' is no label: 1 to 5");
  expect("r.csv", "label,text\n1\n", "1 columns, the first line has 2");
  expect("r.csv", "label,text\n1,\"x\n", "unexpected end of data");
  expect("r.csv", "mark,body\n1,x\n", "columns 'text' and 'label'");
  expect("r.csv", "label,text\n", "holds no reviews");
  expect("r.csv", "label,text\n1,\xFF\n", "not UTF-8");
  expect("r.csv", "", "is empty");
  expect("r.txt", "text", "files named .csv");
  expect("r.jsonl", "{\"label\": 1}\n", "columns 'text' and 'label'");
  expect("r.jsonl", "{\"label\": 1, \"text\": 3}\n", "text of a review is");
  expect("r.jsonl", "{\"label\": 1, \"text\": \"\\ud800\"}\n", "no valid");
  expect("r.jsonl", "[1]\n", "must be an object");
  expect("r.jsonl", "\n{oops\n", "line 2: not JSON");
  const auto expect_label = [&](const std::string& label, const std::string& message) {
    expect("r.jsonl", "{\"label\": " + label + ", \"text\": \"x\"}\n", message);
  };
  expect_label("[[4]]", "line 1: a list is no label: 0 to 4 are");
  expect_label("true", "line 1: True is no label");
  expect_label("1e400", "line 1: inf is no label");
  expect_label(std::string(400, '1'), "line 1: 1111111111");
  expect_label(std::string(9999, '1'), "line 1: ");
  expect_label(testing::nested_json(200'000), "line 1: its JSON is nested too deeply");
}

TEST_F(PrepareErrors, RefusesBadParquet) {
  if (!has("pyarrow")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py with Parquet (see above how to enable it)";
  }
  folder_.write("r.parquet", "PAR1 it is not");
  expect_refused(prepare_reviews(path("r.parquet")), "cannot be read as Parquet");
  const auto expect = [&](const std::string& columns, const std::string& message) {
    const std::string make = fmt::format(
        "-c 'import pyarrow as a, pyarrow.parquet as p; p.write_table(a.table({}), \"{}\")'",
        columns, (folder_ / "r.parquet").string());
    const testing::ProcessResult made = testing::run_python(make);
    ASSERT_EQ(made.code, 0) << made.said;
    expect_refused(prepare_reviews(path("r.parquet")), message);
  };
  const std::string other_names = "{\"mark\": [1], \"text\": [\"x\"]}";
  expect(other_names, "columns 'text' and 'label'");
  expect(other_names, "found: mark, text");
  expect("{\"label\": [1, 7], \"text\": [\"x\", \"y\"]}", "row 2: 7 is no label");
  expect("{\"label\": [1], \"text\": [b\"x\"]}", "row 1: the text of a review is missing");
}

TEST_F(PrepareErrors, RefusesBadTextAndOptions) {
  folder_.write("empty.txt", "");
  folder_.write("binary.txt", "\xFF\xFE");
  std::filesystem::create_directories(folder_ / "none");
  const std::string good = "'" + folder_.write("good.txt", "text").string() + "'";
  expect_refused(prepare_text(path("no.txt")), "does not exist");
  expect_refused(prepare_text(path("empty.txt")), "is empty");
  expect_refused(prepare_text(path("binary.txt")), "is not UTF-8");
  expect_refused(prepare_text(path("none")), "has no *.txt or *.md");
  expect_refused(prepare_text("''"), "a name is needed, and this is empty");
  expect_refused(prepare_text(good, "--validation 0.1"), "--validation was removed: cut the input");
  expect_refused(prepare_text(good, "--tokenizer x"), "not allowed with");
  // The last of two --output counts.
  expect_refused(prepare_text(good, "--output " + path("no/t.tokens")), "No such file");
  expect_refused(prepare_text(good, "--output ''"), "a name is needed, and this is empty");
  expect_refused(prepare_text(good, "--output " + path("none")), "none is a folder, and a file is");
}

TEST_F(PrepareErrors, RefusesOutputsThatAreInputs) {
  folder_.write("notes/a.txt", "first");
  folder_.write("r.csv", kReviewsCsv);
  const std::string over = "would be written over an input, name another";
  expect_refused(prepare_text(path("notes/a.txt"), "--output " + path("notes/../notes/a.txt")),
                 over);
  expect_refused(prepare_text(path("notes"), "--output " + path("notes/a.txt")), over);
  expect_refused(prepare_reviews(path("r.csv"), "--output " + path("r.csv")), over);
  EXPECT_EQ(testing::read_bytes(folder_ / "notes/a.txt"), "first");
  EXPECT_EQ(testing::read_bytes(folder_ / "r.csv"), kReviewsCsv);
}

TEST_F(PrepareErrors, RefusesSeedsThatDoNotFit64Bits) {
  folder_.write("r.csv", kReviewsCsv);
  for (const std::string seed : {"18446744073709551616", "-1"}) {
    expect_refused(prepare_reviews(path("r.csv"), "--seed=" + seed),
                   seed + " is not from 0 to 2^64 - 1");
  }
}

}  // namespace
}  // namespace zero::data

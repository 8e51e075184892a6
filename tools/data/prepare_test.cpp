// What prepare.py writes is what the C++ side reads.
#include <algorithm>

#include <tests/support/prepare.hpp>
#include <tests/support/token_file_writer.hpp>
#include <tools/ladder/data/random.hpp>
#include <tools/ladder/data/text.hpp>
#include <tools/ladder/data/token_file.hpp>
#include <zero/base/sha256.hpp>

namespace zero::data {
namespace {

using testing::kReviewsCsv;
using testing::kTokenizer;
using testing::mentions;
using testing::part_of;
using testing::Prepare;
using testing::PrepareWithTokenizers;
using testing::ProcessResult;
using testing::read_bytes;
using testing::run_python;
using testing::shell_word;
using testing::text_of;
using testing::write_token_file;
using Ids = std::vector<std::int64_t>;

/// The text of the record with this label, of which there is one.
Ids text_labelled(const Records& records, std::int64_t label) {
  const auto found = std::ranges::find(records.labels, label) - records.labels.begin();
  if (found == records.size()) {
    return {};
  }
  const auto i = static_cast<std::size_t>(found);
  return testing::ids_of(part_of(records, i, i + 1).tokens);
}

TEST_F(Prepare, BytesOfTextAreThoseThatTheProgramsRead) {
  folder_.write("docs/b.md", "second \xC3\xA9\r\n");
  folder_.write("docs/a.txt", "first\n");
  folder_.write("docs/.hidden.md", "never");
  ASSERT_EQ(prepare_text(path("docs")), "");
  const TokenStream text = text_from_files({(folder_ / "docs").string()});
  EXPECT_EQ(TokenFile(folder_ / "t.tokens").stream().fingerprint(), text.fingerprint());
  // The same bytes on disk as from the C++ writer, header and all.
  write_token_file(folder_ / "ours.tokens", text);
  EXPECT_EQ(read_bytes(folder_ / "t.tokens"), read_bytes(folder_ / "ours.tokens"));
}

TEST_F(Prepare, BytesOfReviewsAreThoseThatTheProgramsReadInSeededOrder) {
  const auto fixture = testing::fixtures() / "reviews.csv";
  ASSERT_EQ(prepare_reviews(shell_word(fixture), "--max-length 40"), "");
  const Records prepared = TokenFile(folder_ / "r.tokens").records();
  // The same reviews in the order of the CSV file, which the ladder trains on.
  const Records expected = TokenFile(testing::fixtures() / "reviews.tokens").records();
  const Ids order = permutation(expected.size(), generator_for(/*seed=*/42, /*stream=*/0));
  ASSERT_EQ(prepared.size(), 60);
  ASSERT_EQ(expected.size(), 60);
  for (std::int64_t i = 0; i < prepared.size(); ++i) {
    const std::int64_t source = order[static_cast<std::size_t>(i)];
    EXPECT_EQ(text_of(prepared, i), text_of(expected, source).substr(0, 40));
    EXPECT_EQ(prepared.labels[static_cast<std::size_t>(i)],
              expected.labels[static_cast<std::size_t>(source)]);
  }
}

TEST_F(Prepare, Limits) {
  const auto fixture = testing::fixtures() / "reviews.csv";
  ASSERT_EQ(prepare_reviews(shell_word(fixture), "--seed 7"), "");
  ASSERT_EQ(
      prepare_reviews(shell_word(fixture), "--seed 7 --limit 50 --output " + path("part.tokens")),
      "");
  const Records all = TokenFile(folder_ / "r.tokens").records();
  EXPECT_EQ(TokenFile(folder_ / "part.tokens").records().fingerprint(),
            part_of(all, 0, 50).fingerprint());
}

TEST_F(Prepare, EveryFormOfReviewsGivesTheSameFile) {
  folder_.write("header.csv", "text,id,label\n\"very \"\"good\"\"\nsoup\",1,4\nbad bread,2,0\n");
  folder_.write("stars.csv", "stars,text\n5,\"very \"\"good\"\"\nsoup\"\n1,bad bread\n");
  folder_.write("original.csv", "\"5\",\"very \"\"good\"\"\\nsoup\"\n\"1\",\"bad bread\"\n");
  folder_.write("label.jsonl",
                "{\"label\": 4, \"text\": \"very \\\"good\\\"\\nsoup\"}\n\n"
                "{\"text\": \"bad bread\", \"label\": 0, \"id\": 2}\n");
  folder_.write("stars.json",
                "{\"stars\": 5.0, \"text\": \"very \\\"good\\\"\\nsoup\"}\n"
                "{\"stars\": 1.0, \"text\": \"bad bread\"}\n");
  const std::vector<std::string> names{"header.csv", "stars.csv", "original.csv", "label.jsonl",
                                       "stars.json"};
  std::string first;
  for (const auto& name : names) {
    ASSERT_EQ(prepare_reviews(path(name)), "") << name;
    const std::string bytes = read_bytes(folder_ / "r.tokens");
    first = first.empty() ? bytes : first;
    EXPECT_EQ(bytes, first) << name;
  }
  const Records records = TokenFile(folder_ / "r.tokens").records();
  const std::string good = "very \"good\"\nsoup";
  EXPECT_EQ(text_labelled(records, 4), Ids(good.begin(), good.end()));
}

TEST_F(Prepare, ParquetGivesTheSameFileAsCsv) {
  if (!has("pyarrow")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py with Parquet (see above how to enable it)";
  }
  folder_.write("r.csv", kReviewsCsv);
  const std::string make = fmt::format(
      "-c 'import pyarrow.csv, pyarrow.parquet as p; "
      "p.write_table(pyarrow.csv.read_csv(\"{0}/r.csv\"), \"{0}/r.parquet\")'",
      folder_.path().string());
  const ProcessResult made = run_python(make);
  ASSERT_EQ(made.code, 0) << made.said;
  for (const std::string form : {"csv", "parquet"}) {
    ASSERT_EQ(prepare_reviews(path("r." + form), "--output " + path(form + ".tokens")), "");
  }
  EXPECT_EQ(TokenFile(folder_ / "parquet.tokens").records().size(), 3);
  EXPECT_EQ(read_bytes(folder_ / "parquet.tokens"), read_bytes(folder_ / "csv.tokens"));
}

TEST_F(Prepare, ManyInputsAreOneSetWithoutReviewsThatHaveNoText) {
  folder_.write("a.csv", "label,text\n4,good\n0,\"\"\n");
  folder_.write("b.jsonl", "{\"label\": 0, \"text\": \"bad\"}\n");
  ASSERT_EQ(prepare_reviews(path("a.csv") + " " + path("b.jsonl")), "");
  EXPECT_TRUE(mentions(said_, "left out: 1 reviews without a token"));
  EXPECT_EQ(TokenFile(folder_ / "r.tokens").records().size(), 2);
}

TEST_F(PrepareWithTokenizers, ForReviews) {
  const std::string base = fmt::format("reviews --tokenizer {} --input {} --output {}",
                                       path("tokenizer.json"), path("r.csv"), path("r.tokens"));
  ASSERT_EQ(prepare(base), "");
  const Records whole = TokenFile(folder_ / "r.tokens").records();
  EXPECT_EQ(whole.tokens.vocabulary(), 11);
  EXPECT_EQ(whole.pad_id, 1);
  EXPECT_EQ(whole.tokens.tokenizer_fingerprint(),
            base::Sha256().add(std::string(kTokenizer)).hex());
  EXPECT_EQ(text_labelled(whole, 4), (Ids{2, 8, 3, 5, 6, 9}));
  EXPECT_EQ(text_labelled(whole, 0), (Ids{2, 4, 7}));
  EXPECT_EQ(text_labelled(whole, 2), (Ids{2, 5}));

  ASSERT_EQ(prepare(base + " --max-length 3 --pad-token tea"), "");
  const Records cut = TokenFile(folder_ / "r.tokens").records();
  EXPECT_EQ(cut.pad_id, 9);
  EXPECT_EQ(text_labelled(cut, 4), (Ids{2, 8, 3}));
  EXPECT_EQ(text_labelled(cut, 2), (Ids{2, 5}));
}

TEST_F(PrepareWithTokenizers, ForText) {
  folder_.write("a.txt", "good soup and bad bread\n");
  folder_.write("b.txt", "very good coffee");
  ASSERT_EQ(
      prepare(fmt::format("text --tokenizer {} --input {} {} --output {}", path("tokenizer.json"),
                          path("a.txt"), path("b.txt"), path("t.tokens"))),
      "");
  const TokenStream text = TokenFile(folder_ / "t.tokens").stream();
  EXPECT_EQ(text.vocabulary(), 11);
  EXPECT_EQ(testing::ids_of(text), (Ids{3, 5, 6, 4, 7, 8, 3, 0}));
}

}  // namespace
}  // namespace zero::data

#include <gtest/gtest.h>

#include <ostream>

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/reviews.hpp>
#include <zero/data/token_file.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::mentions;
using testing::TestFolder;
using testing::text_of;

Records two_reviews() {
  const std::vector<Record> records = {{4, {7, 300}}, {0, {8}}};
  return Records::from(records, kReviewClasses, /*vocabulary=*/301, /*pad_id=*/2);
}

TEST(FileKind, GoesByTheContentsNotTheName) {
  const TestFolder folder;
  EXPECT_EQ(file_kind(folder.write("a.csv", "4,\"good\"\n")), FileKind::kText);
  EXPECT_EQ(file_kind(folder.write("b.jsonl", "plain words\n")), FileKind::kText);
  EXPECT_EQ(file_kind(folder.write("c.txt", "\n  {\"label\": 1}\nrest")), FileKind::kJsonLines);
  EXPECT_EQ(file_kind(folder.write("d.txt", "\xEF\xBB\xBF{\"label\": 1}")), FileKind::kJsonLines);
  EXPECT_EQ(file_kind(folder.write("e.txt", "{braces} in prose")), FileKind::kText);
  EXPECT_EQ(file_kind(folder.write("f.txt", "PAR1....")), FileKind::kParquet);
  write_token_file(folder / "g.txt", two_reviews());
  EXPECT_EQ(file_kind(folder / "g.txt"), FileKind::kTokens);
}

TEST(FileKind, RefusesATokenFileWhoseFirstBytesAreDamaged) {
  const TestFolder folder;
  const std::vector<std::int64_t> ids = {1, 2, 3};
  write_token_file(folder / "stream", TokenStream::from_ids(ids, /*vocabulary=*/10));
  write_token_file(folder / "records", two_reviews());
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    return error_of([&] { file_kind(folder.write(name, bytes)); });
  };
  for (const char* name : {"stream", "records"}) {
    const std::string whole = testing::read_bytes(folder / name);
    for (std::size_t i = 0; i < 8; ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
      EXPECT_TRUE(mentions(refusal("t", damaged), "t is laid out as a token file, but does not"));
    }
    // As a transfer in text mode leaves it, with all that follows moved by a byte.
    EXPECT_TRUE(mentions(refusal("t", "ZEROTOK\r\n" + whole.substr(8)), "it is damaged, make it"));
  }
  EXPECT_TRUE(mentions(refusal("t.tokens", "prose"), "is called .tokens like a token file"));
  EXPECT_TRUE(mentions(refusal("t.tokens", "prose"), "text needs another name"));
}

TEST(FileKind, RefusesWhatIsNoFile) {
  const TestFolder folder;
  EXPECT_TRUE(mentions(error_of([&] { file_kind(folder / "none"); }), "none does not exist"));
  EXPECT_TRUE(mentions(error_of([&] { file_kind(folder.write("empty", "")); }), "empty is empty"));
  EXPECT_TRUE(mentions(error_of([&] { file_kind(folder.path()); }), "is not a regular file"));
}

TEST(ReviewsFromJsonLines, LabelsAndStarsAreTheSameClasses) {
  const TestFolder folder;
  const Records records =
      reviews_from_json_lines(folder.write("r",
                                           "{\"label\": 4, \"text\": \"fine\", \"id\": 7}\n\n"
                                           "{\"stars\": 1.0, \"text\": \"b\\u00e9d\"}\r\n"
                                           "{\"text\": \"so\\nso\", \"stars\": \"3\"}"));
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(std::vector(records.labels.begin(), records.labels.end()),
            (std::vector<std::uint32_t>{4, 0, 2}));
  EXPECT_EQ(text_of(records, 0), "fine");
  EXPECT_EQ(text_of(records, 1),
            "b\xC3\xA9"
            "d");
  EXPECT_EQ(text_of(records, 2), "so\nso");
  EXPECT_EQ(records.tokens.vocabulary(), kByteVocabulary);
}

TEST(ReviewsFromJsonLines, RefusesWhatIsNestedTooDeeply) {
  const TestFolder folder;
  constexpr int kLevels = 300'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  const auto path = folder.write("r", "\n{\"label\": " + deep + ", \"text\": \"x\"}");
  EXPECT_TRUE(mentions(error_of([&] { reviews_from_json_lines(path); }),
                       "r, line 2: its JSON is nested deeper than 64 levels"));
}

struct Refused {
  std::string name;
  std::string lines;
  std::string message;
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.lines; }

class RefusedJsonLines : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedJsonLines, SaysLineAndCause) {
  const TestFolder folder;
  const auto path = folder.write("r.jsonl", GetParam().lines);
  const std::string message = error_of([&] { reviews_from_json_lines(path); });
  EXPECT_TRUE(mentions(message, "r.jsonl")) << message;
  EXPECT_TRUE(mentions(message, GetParam().message)) << message;
}

const std::string kGood = "{\"label\": 0, \"text\": \"x\"}\n";

INSTANTIATE_TEST_SUITE_P(
    All, RefusedJsonLines,
    ::testing::Values(
        Refused{"NotJson", kGood + "{\"label\": 0,", "line 2: not JSON"},
        Refused{"NoObject", "[1, 2]", "line 1: each line must be an object"},
        Refused{"NoText", "{\"label\": 0}", "line 1: 'text' and 'label'"},
        Refused{"NoLabel", "{\"text\": \"x\"}", "line 1: 'text' and 'label'"},
        Refused{"LabelFive", "\n{\"label\": 5, \"text\": \"x\"}",
                "line 2: '5' is no label: 0 to 4"},
        Refused{"NoStar", "{\"stars\": 0, \"text\": \"x\"}", "'0' is no label: 1 to 5 are"},
        Refused{"HalfStar", "{\"stars\": 2.5, \"text\": \"x\"}", "'2.5' is no label"},
        Refused{"WordForLabel", "{\"label\": \"good\", \"text\": \"x\"}", "'good' is no label"},
        Refused{"HugeLabel", "{\"label\": 1e300, \"text\": \"x\"}", "is no label"},
        Refused{"NullLabel", "{\"label\": null, \"text\": \"x\"}", "'null' is no label"},
        Refused{"EmptyText", "{\"label\": 0, \"text\": \"\"}", "the review has no text"},
        Refused{"NumberForText", "{\"label\": 0, \"text\": 3}", "the review has no text"},
        Refused{"OnlyLineEnds", "\n \n", "no reviews"}),
    [](const auto& info) { return info.param.name; });

TEST(ReviewsFromFile, UnderstandsEachForm) {
  const TestFolder folder;
  EXPECT_EQ(text_of(reviews_from_file(folder.write("a", "label,text\n3,abc\n")), 0), "abc");
  EXPECT_EQ(text_of(reviews_from_file(folder.write("b", kGood)), 0), "x");
  write_token_file(folder / "c", two_reviews());
  const Records records = reviews_from_file(folder / "c");
  EXPECT_EQ(records.fingerprint(), two_reviews().fingerprint());
  EXPECT_EQ(records.pad_id, 2);
}

TEST(ReviewsFromFile, SaysWhatToDoAboutOtherFiles) {
  const TestFolder folder;
  const std::string parquet =
      error_of([&] { reviews_from_file(folder.write("p", "PAR1 and more")); });
  EXPECT_TRUE(mentions(parquet, "make a token file of it first (./run data)")) << parquet;
  const std::vector<std::int64_t> ids = {1, 2, 3};
  write_token_file(folder / "stream", TokenStream::from_ids(ids, /*vocabulary=*/10));
  EXPECT_TRUE(mentions(error_of([&] { reviews_from_file(folder / "stream"); }), "stream"));
}

}  // namespace
}  // namespace zero::data

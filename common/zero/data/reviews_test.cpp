#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <tests/support/token_file_writer.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/reviews.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::expect_error;
using testing::mentions;
using testing::TestFolder;
using testing::text_of;
using testing::write_token_file;
using Rows = std::vector<std::vector<std::string>>;

Rows rows_of(const std::string& text) {
  Rows rows;
  for (const CsvRow& row : parse_csv(text, "test")) {
    rows.push_back(row.fields);
  }
  return rows;
}

std::string refusal(const std::string& csv) {
  const TestFolder folder;
  const auto path = folder.write("tried.csv", csv);
  return error_of([&] { reviews_from_csv(path); });
}

TEST(Csv, PlainAndQuotedFields) {
  EXPECT_EQ(rows_of("a,b\nc,d\n"), (Rows{{"a", "b"}, {"c", "d"}}));
  EXPECT_EQ(rows_of("a,b"), (Rows{{"a", "b"}}));
  EXPECT_EQ(rows_of("\"a,b\",\"c \"\"d\"\"\"\n"), (Rows{{"a,b", "c \"d\""}}));
  EXPECT_EQ(rows_of("\"one\ntwo\",x"), (Rows{{"one\ntwo", "x"}}));
  EXPECT_EQ(rows_of("\"\"\"\"\n"), (Rows{{"\""}}));
  EXPECT_EQ(rows_of(""), Rows{});
}

TEST(Csv, EmptyFieldsAndLines) {
  EXPECT_EQ(rows_of(",\n"), (Rows{{"", ""}}));
  EXPECT_EQ(rows_of("a,"), (Rows{{"a", ""}}));
  EXPECT_EQ(rows_of("\"\",a"), (Rows{{"", "a"}}));
  EXPECT_EQ(rows_of("\n\r\na\n\n\nb\n\n"), (Rows{{"a"}, {"b"}}));
}

TEST(Csv, LineEndsAndByteOrderMark) {
  EXPECT_EQ(rows_of("a,b\r\n\"c\",d\r\n"), (Rows{{"a", "b"}, {"c", "d"}}));
  EXPECT_EQ(rows_of("\"c\r\nd\",e\r\n"), (Rows{{"c\r\nd", "e"}}));
  EXPECT_EQ(rows_of("\xEF\xBB\xBF\"a\",b"), (Rows{{"a", "b"}}));
  EXPECT_EQ(rows_of("a\rb,c\n"), (Rows{{"a\rb", "c"}}));
}

TEST(Csv, RowsKnowTheirLine) {
  const auto rows = parse_csv("a\n\n\"b\nb\nb\"\nc\n", "test");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].line, 1);
  EXPECT_EQ(rows[1].line, 3);
  EXPECT_EQ(rows[2].line, 6);
}

TEST(Csv, RefusesStrayQuotes) {
  expect_error([] { rows_of("a\nb,\"c\nd"); }, {"test, line 2: a quoted field "
                                                "that is never closed"});
  expect_error([] { rows_of("a\nb\"c\n"); }, {"line 2: a double quote inside"});
  expect_error([] { rows_of("\"a\"b\n"); }, {"line 1: text after the closing"});
}

TEST(Csv, AnyTextIsReadOrRefused) {
  // Every string of length 6 over the characters that mean something to the parser.
  const std::string alphabet = "a,\"\n\r";
  int read = 0;
  int refused = 0;
  for (int number = 0; number < 15'625; ++number) {
    std::string text;
    for (int left = number, i = 0; i < 6; ++i, left /= 5) {
      text += alphabet[static_cast<std::size_t>(left % 5)];
    }
    ++(error_of([&] { rows_of(text); }).empty() ? read : refused);
  }
  EXPECT_GT(read, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Reviews, FixtureIsBalanced) {
  const Records reviews = reviews_from_csv(testing::fixtures() / "reviews.csv");
  ASSERT_EQ(reviews.size(), 60);
  EXPECT_EQ(reviews.classes, 5);
  EXPECT_EQ(reviews.tokens.vocabulary(), 256);
  for (std::uint32_t label = 0; label < 5; ++label) {
    EXPECT_EQ(std::count(reviews.labels.begin(), reviews.labels.end(), label), 12) << label;
  }
  // The fixture has both of what a naive reader gets wrong.
  EXPECT_TRUE(mentions(text_of(reviews, 6), "was \"no longer closed\"."));
  EXPECT_TRUE(mentions(text_of(reviews, 7), "else.\nGo"));
}

TEST(Reviews, HeaderFormTakesTextAsItStandsAndStarsCountFromOne) {
  const TestFolder folder;
  const char* rows[] = {"id,text,label\n1,\"good\\n\",4\n2,bad,0\n",
                        "id,text,stars\n1,\"good\\n\",5\n2,bad,1\n"};
  for (const char* csv : rows) {
    const Records reviews = reviews_from_csv(folder.write("r.csv", csv));
    ASSERT_EQ(reviews.size(), 2);
    EXPECT_EQ(text_of(reviews, 0), "good\\n");
    EXPECT_EQ(reviews.labels[0], 4U);
    EXPECT_EQ(reviews.labels[1], 0U);
  }
}

TEST(Reviews, OriginalFormHasStarsAndEscapedLineEnds) {
  const TestFolder folder;
  const auto path =
      folder.write("r.csv", "\"5\",\"so \"\"good\"\"\\n\\nreally\"\n\"1\",\"bad\\\"\n");
  const Records reviews = reviews_from_csv(path);
  ASSERT_EQ(reviews.size(), 2);
  EXPECT_EQ(text_of(reviews, 0), "so \"good\"\n\nreally");
  EXPECT_EQ(text_of(reviews, 1), "bad\\");
  EXPECT_EQ(reviews.labels[0], 4U);
  EXPECT_EQ(reviews.labels[1], 0U);
}

TEST(Reviews, RefusesBadFiles) {
  expect_error([] { reviews_from_csv("no.csv"); }, {"no.csv: cannot be opened: No such file"});
  EXPECT_TRUE(mentions(refusal(""), "is empty"));
  EXPECT_TRUE(mentions(refusal("\n\n"), "label and text was expected"));
  EXPECT_TRUE(mentions(refusal("only one column\n"), "label and text was expected"));
  EXPECT_TRUE(mentions(refusal("mark,text\n1,a\n"), "columns 'text' and 'label' or 'stars'"));
  EXPECT_TRUE(mentions(refusal("label,body\n1,a\n"), "columns 'text' and 'label' or 'stars'"));
  EXPECT_TRUE(mentions(refusal("label,text\n"), "a header and no reviews"));
}

TEST(Reviews, RefusesBadRows) {
  EXPECT_TRUE(mentions(refusal("label,text\n4,a\n5,b\n"), "line 3: '5' is no label: 0 to 4"));
  EXPECT_TRUE(mentions(refusal("label,text\n-1,a\n"), "'-1' is no label"));
  EXPECT_TRUE(mentions(refusal("label,text\nx,a\n"), "'x' is no label"));
  EXPECT_TRUE(mentions(refusal("label,text\n1.5,a\n"), "'1.5' is no label"));
  EXPECT_TRUE(mentions(refusal("stars,text\n0,a\n"), "'0' is no label: 1 to 5"));
  EXPECT_TRUE(mentions(refusal("5,a\n0,b\n"), "line 2: '0' is no label: 1 to 5"));
  EXPECT_TRUE(mentions(refusal("label,text\n1\n"), "line 2: 1 columns, the first line has 2"));
  EXPECT_TRUE(mentions(refusal("label,text\n1,\"\"\n"), "line 2: the review has no text"));
}

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
  const auto expect_refused = [&](const std::string& name, const std::string& bytes,
                                  const std::string& message) {
    expect_error([&] { file_kind(folder.write(name, bytes)); }, {message});
  };
  for (const char* name : {"stream", "records"}) {
    const std::string whole = testing::read_bytes(folder / name);
    for (std::size_t i = 0; i < 8; ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
      expect_refused("t", damaged, "t is laid out as a token file, but does not");
    }
    // As a transfer in text mode leaves it, with all that follows moved by a byte.
    expect_refused("t", "ZEROTOK\r\n" + whole.substr(8), "it is damaged, make it");
  }
  expect_refused("t.tokens", "prose", "is called .tokens like a token file");
  expect_refused("t.tokens", "prose", "text needs another name");
}

TEST(FileKind, RefusesWhatIsNoFile) {
  const TestFolder folder;
  expect_error([&] { file_kind(folder / "none"); }, {"none: cannot be opened: No such file"});
  expect_error([&] { file_kind(folder.write("empty", "")); }, {"empty: is empty"});
  expect_error([&] { file_kind(folder.path()); }, {"is not a regular file"});
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
  const auto path =
      folder.write("r", "\n{\"label\": " + testing::nested_json() + ", \"text\": \"x\"}");
  expect_error([&] { reviews_from_json_lines(path); },
               {"r, line 2: its JSON is nested deeper than 64 levels"});
}

const std::string kGood = R"({"label": 0, "text": "x"})"
                          "\n";

TEST(ReviewsFromJsonLines, RefusalsSayLineAndCause) {
  const TestFolder folder;
  const std::vector<std::pair<std::string, std::string>> rows = {
      {kGood + R"({"label": 0,)", "line 2: not JSON"},
      {"[1, 2]", "line 1: each line must be an object"},
      {R"({"label": 0})", "line 1: 'text' and 'label'"},
      {R"({"text": "x"})", "line 1: 'text' and 'label'"},
      {"\n"
       R"({"label": 5, "text": "x"})",
       "line 2: '5' is no label: 0 to 4"},
      {R"({"stars": 0, "text": "x"})", "'0' is no label: 1 to 5 are"},
      {R"({"stars": 2.5, "text": "x"})", "'2.5' is no label"},
      {R"({"label": "good", "text": "x"})", "'good' is no label"},
      {R"({"label": 1e300, "text": "x"})", "is no label"},
      {R"({"label": null, "text": "x"})", "'null' is no label"},
      {R"({"label": 0, "text": ""})", "the review has no text"},
      {R"({"label": 0, "text": 3})", "the review has no text"},
      {"\n \n", "no reviews"}};
  for (const auto& [lines, message] : rows) {
    SCOPED_TRACE(lines);
    const auto path = folder.write("r.jsonl", lines);
    expect_error([&] { reviews_from_json_lines(path); }, {"r.jsonl", message});
  }
}

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
  expect_error([&] { reviews_from_file(folder.write("p", "PAR1 and more")); },
               {"make a token file of it first (./run data)"});
  const std::vector<std::int64_t> ids = {1, 2, 3};
  write_token_file(folder / "stream", TokenStream::from_ids(ids, /*vocabulary=*/10));
  expect_error([&] { reviews_from_file(folder / "stream"); }, {"stream"});
}

}  // namespace
}  // namespace zero::data

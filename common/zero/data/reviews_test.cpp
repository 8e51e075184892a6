#include <gtest/gtest.h>

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <zero/data/csv.hpp>
#include <zero/data/reviews.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::mentions;
using testing::TestFolder;
using testing::text_of;
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
  EXPECT_TRUE(mentions(error_of([] { rows_of("a\nb,\"c\nd"); }),
                       "test, line 2: a quoted field "
                       "that is never closed"));
  EXPECT_TRUE(mentions(error_of([] { rows_of("a\nb\"c\n"); }), "line 2: a double quote inside"));
  EXPECT_TRUE(mentions(error_of([] { rows_of("\"a\"b\n"); }), "line 1: text after the closing"));
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
  std::vector<int> counts(5);
  for (const std::uint32_t label : reviews.labels) {
    ++counts.at(label);
  }
  EXPECT_EQ(counts, (std::vector<int>{12, 12, 12, 12, 12}));
  // The fixture has both of what a naive reader gets wrong.
  EXPECT_TRUE(mentions(text_of(reviews, 6), "was \"no longer closed\"."));
  EXPECT_TRUE(mentions(text_of(reviews, 7), "else.\nGo"));
}

TEST(Reviews, HeaderFormTakesTextAsItStands) {
  const TestFolder folder;
  const auto path = folder.write("r.csv", "id,text,label\n1,\"good\\n\",4\n2,bad,0\n");
  const Records reviews = reviews_from_csv(path);
  ASSERT_EQ(reviews.size(), 2);
  EXPECT_EQ(text_of(reviews, 0), "good\\n");
  EXPECT_EQ(reviews.labels[0], 4U);
  EXPECT_EQ(reviews.labels[1], 0U);
}

TEST(Reviews, StarsCountFromOne) {
  const TestFolder folder;
  const auto path = folder.write("r.csv", "stars,text\n5,good\n1,bad\n");
  const Records reviews = reviews_from_csv(path);
  EXPECT_EQ(reviews.labels[0], 4U);
  EXPECT_EQ(reviews.labels[1], 0U);
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
  EXPECT_TRUE(mentions(error_of([] { reviews_from_csv("no.csv"); }), "no.csv does not exist"));
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

}  // namespace
}  // namespace zero::data

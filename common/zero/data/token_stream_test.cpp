#include <gtest/gtest.h>

#include <cmath>

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <zero/data/token_stream.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::ids_of;
using testing::kSomeTokenizer;
using testing::mentions;
using testing::three_records;

TEST(TokenStream, KeepsIdsOfEveryWidth) {
  for (const std::int64_t vocabulary : {1 << 8, 1 << 16, 1 << 24}) {
    const std::vector<std::int64_t> ids{0, 5, vocabulary - 1};
    const TokenStream stream = TokenStream::from_ids(ids, vocabulary);
    EXPECT_EQ(ids_of(stream), ids);
    EXPECT_EQ(ids_of(stream.slice(1, 3)), (std::vector<std::int64_t>{5, vocabulary - 1}));
  }
}

TEST(TokenStream, RefusesWhatIsOutside) {
  const std::vector<std::int64_t> ids{1, 2, 3};
  const TokenStream stream = TokenStream::from_ids(ids, 4);
  EXPECT_TRUE(mentions(error_of([&] { stream[3]; }), "[3, 4)"));
  EXPECT_TRUE(mentions(error_of([&] { stream[-1]; }), "[-1, 0)"));
  EXPECT_TRUE(mentions(error_of([&] { stream.slice(2, 1); }), "[2, 1)"));
  EXPECT_TRUE(mentions(error_of([&] { TokenStream::from_ids(ids, 3); }), "token 2 is 3"));
  EXPECT_TRUE(mentions(error_of([&] { TokenStream::from_ids({}, 0); }), "vocabulary of 0"));
}

TEST(TokenStream, FingerprintIsOfTheTokensAlone) {
  const std::vector<std::int64_t> ids{1, 2, 3};
  const std::vector<std::int64_t> others{1, 2, 4};
  const TokenStream stream = TokenStream::from_ids(ids, 256);
  EXPECT_EQ(stream.fingerprint(), TokenStream::from_bytes("\1\2\3").fingerprint());
  EXPECT_EQ(stream.fingerprint(), TokenStream::from_bytes("x\1\2\3").slice(1, 4).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_ids(others, 256).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_ids(ids, 257).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_ids(ids, 256, kSomeTokenizer).fingerprint());
  EXPECT_NE(stream.fingerprint(), stream.slice(0, 2).fingerprint());
}

TEST(Records, FingerprintIsOfTextsAndLabels) {
  const Records records = three_records();
  EXPECT_EQ(records.fingerprint(), three_records().fingerprint());
  const std::vector<Record> relabelled{{4, {7, 8, 9}}, {1, {10}}, {2, {11, 300}}};
  const std::vector<Record> recut{{4, {7, 8}}, {0, {9, 10}}, {2, {11, 300}}};
  for (const auto& other : {relabelled, recut}) {
    EXPECT_NE(records.fingerprint(), Records::from(other, 5, 301, 6, kSomeTokenizer).fingerprint());
  }
  const std::vector<Record> last{{2, {11, 300}}};
  EXPECT_EQ(records.slice(2, 3).fingerprint(),
            Records::from(last, 5, 301, 6, kSomeTokenizer).fingerprint());
}

TEST(Records, RefusesBadOnes) {
  const auto refuse = [](Record record, std::int64_t pad_id = 0) {
    return error_of([&] { Records::from({&record, 1}, 5, 10, pad_id); });
  };
  EXPECT_EQ(refuse({4, {9}}), "");
  EXPECT_TRUE(mentions(refuse({5, {9}}), "label 5"));
  EXPECT_TRUE(mentions(refuse({-1, {9}}), "label -1"));
  EXPECT_TRUE(mentions(refuse({0, {}}), "no tokens"));
  EXPECT_TRUE(mentions(refuse({0, {10}}), "outside the vocabulary"));
  EXPECT_TRUE(mentions(refuse({0, {9}}, 10), "pad id 10"));
  EXPECT_TRUE(mentions(error_of([] { Records::from({}, 5, 10); }), "no records"));
}

TEST(Split, ValidationIsTheTail) {
  const auto [train, validation] = split(TokenStream::from_bytes("abcdefghij"), 0.25);
  EXPECT_EQ(train.size(), 7);
  EXPECT_EQ(validation.size(), 3);
  EXPECT_EQ(validation[0], 'h');
  const auto [most, rest] = split(three_records(), 0.3);
  EXPECT_EQ(most.size(), 2);
  ASSERT_EQ(rest.size(), 1);
  EXPECT_EQ(rest.labels[0], 2U);
  EXPECT_EQ(rest.length(0), 2);
}

TEST(Split, RefusesAnEmptyPart) {
  EXPECT_EQ(training_part(10, 0.1), 9);
  for (const double fraction : {0.0, 1.0, -0.5, 0.04, 0.96, std::nan("")}) {
    EXPECT_TRUE(mentions(error_of([&] { training_part(10, fraction); }), "validation fraction"))
        << fraction;
  }
}

}  // namespace
}  // namespace zero::data

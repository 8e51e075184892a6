#include "dataset.hpp"

#include <set>

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>

namespace zero::data {
namespace {

using testing::expect_error;
using Indices = std::vector<std::int64_t>;

at::Tensor longs(const std::vector<std::int64_t>& numbers, at::IntArrayRef shape) {
  return at::tensor(numbers, at::kLong).reshape(shape);
}

TEST(LanguageModelDataset, CutsTheStreamWithoutOverlap) {
  const Indices ids{10, 11, 12, 13, 14, 15, 16, 17, 18};
  const LanguageModelDataset data(testing::stream_of(ids, 20), /*sequence_length=*/3);
  ASSERT_EQ(data.size(), 2);
  const Batch batch = data.batch(Indices{1, 0});
  EXPECT_TRUE(at::equal(batch.inputs, longs({13, 14, 15, 10, 11, 12}, {2, 3})));
  EXPECT_TRUE(at::equal(batch.targets, longs({14, 15, 16, 11, 12, 13}, {2, 3})));
  EXPECT_FALSE(batch.lengths.defined());
  EXPECT_EQ(batch.loss_terms, 6);
}

TEST(LanguageModelDataset, NeedsOneTokenMoreThanItsSequences) {
  const auto size = [](const std::string& text, std::int64_t length) {
    return LanguageModelDataset(TokenStream::from_bytes(text), length).size();
  };
  EXPECT_EQ(size("abcde", 4), 1);
  EXPECT_EQ(size("abcdefgh", 4), 1);
  EXPECT_EQ(size("abcdefghi", 4), 2);
  expect_error([&] { size("abcd", 4); }, {"one sequence of 4 takes 5"});
  expect_error([&] { size("abcd", 0); }, {"sequences of 0"});
}

// A text of two lines, and bytes above 127.
TEST(ReviewDataset, CutsTextsAndPadsToTheLongestOfTheBatch) {
  const testing::TestFolder folder;
  const auto file = folder.write("r.csv", "label,text\n4,abc\n0,x\n2,a\n\xC3\n1,long\n");
  const ReviewDataset data(file, /*max_length=*/3);
  ASSERT_EQ(data.size(), 4);
  const Batch batch = data.batch(Indices{1, 0, 2, 3});
  EXPECT_TRUE(
      at::equal(batch.inputs, longs({120, 0, 0, 97, 98, 99, 97, 10, 0xC3, 108, 111, 110}, {4, 3})));
  EXPECT_TRUE(at::equal(batch.targets, longs({0, 4, 2, 1}, {4})));
  EXPECT_TRUE(at::equal(batch.lengths, longs({1, 3, 3, 3}, {4})));
  EXPECT_EQ(batch.loss_terms, 4);
  EXPECT_TRUE(at::equal(data.batch(Indices{1}).inputs, longs({120}, {1, 1})));
  EXPECT_NE(ReviewDataset(file, 2).fingerprint(), data.fingerprint());
}

TEST(Dataset, RefusesSamplesThatAreNotThereAndTakesNone) {
  const testing::TestFolder folder;
  const TokenStream text = TokenStream::from_bytes("abcdefghi");
  const LanguageModelDataset tokens(text, 2);
  const ReviewDataset reviews(folder.write("r.csv", "label,text\n1,a\n2,b\n3,c\n4,d\n"), 9);
  std::set<std::string> fingerprints = {LanguageModelDataset(text, 3).fingerprint()};
  for (const Dataset* data : std::initializer_list<const Dataset*>{&tokens, &reviews}) {
    ASSERT_EQ(data->size(), 4);
    expect_error([&] { data->batch(Indices{0, 4}); }, {"sample 4 asked for"});
    expect_error([&] { data->batch(Indices{-1}); }, {"sample -1 asked for"});
    const Batch batch = data->batch({});
    EXPECT_EQ(batch.inputs.size(0), 0);
    EXPECT_GE(batch.inputs.size(1), 1);
    EXPECT_EQ(batch.targets.size(0), 0);
    EXPECT_EQ(batch.loss_terms, 0);
    fingerprints.insert(data->fingerprint());
  }
  EXPECT_EQ(fingerprints.size(), 3U);
}

}  // namespace
}  // namespace zero::data

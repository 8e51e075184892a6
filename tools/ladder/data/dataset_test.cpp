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

Records some_records() {
  return testing::records_of({{4, {7, 8, 9}}, {0, {10}}, {2, {11, 12}}, {1, {5, 5, 5, 5}}},
                             /*classes=*/5, /*vocabulary=*/20, /*pad_id=*/3);
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
  expect_error([&] { size("", 1); }, {"has 0 tokens"});
  expect_error([&] { size("abcd", 0); }, {"sequences of 0"});
}

TEST(ReviewDataset, PadsToTheLongestOfTheBatch) {
  const ReviewDataset data(some_records());
  ASSERT_EQ(data.size(), 4);
  const Batch batch = data.batch(Indices{1, 0, 2});
  EXPECT_TRUE(at::equal(batch.inputs, longs({10, 3, 3, 7, 8, 9, 11, 12, 3}, {3, 3})));
  EXPECT_TRUE(at::equal(batch.targets, longs({0, 4, 2}, {3})));
  EXPECT_TRUE(at::equal(batch.lengths, longs({1, 3, 2}, {3})));
  EXPECT_EQ(batch.loss_terms, 3);
  EXPECT_TRUE(at::equal(data.batch(Indices{1}).inputs, longs({10}, {1, 1})));
}

TEST(ReviewDataset, CutsLongTexts) {
  const Batch cut = ReviewDataset(some_records(), /*max_length=*/2).batch(Indices{3, 1});
  EXPECT_TRUE(at::equal(cut.inputs, longs({5, 5, 10, 3}, {2, 2})));
  EXPECT_TRUE(at::equal(cut.lengths, longs({2, 1}, {2})));
}

TEST(RegressionDataset, PicksRows) {
  const at::Tensor inputs = at::arange(6, at::kFloat).reshape({3, 2});
  const at::Tensor targets = at::arange(3, at::kFloat).reshape({3, 1});
  const RegressionDataset data(inputs, targets);
  const Batch batch = data.batch(Indices{2, 0, 2});
  EXPECT_TRUE(at::equal(batch.inputs, at::tensor({4.F, 5.F, 0.F, 1.F, 4.F, 5.F}).reshape({3, 2})));
  EXPECT_TRUE(at::equal(batch.targets, at::tensor({2.F, 0.F, 2.F}).reshape({3, 1})));
  EXPECT_EQ(batch.loss_terms, 3);
}

TEST(Datasets, RefuseOtherShapesDtypesAndSizes) {
  const at::Tensor inputs = at::zeros({3, 2}), targets = at::zeros({3, 1});
  EXPECT_NO_THROW(RegressionDataset(inputs, targets));
  EXPECT_THROW(RegressionDataset(inputs, at::zeros({2, 1})), Error);
  EXPECT_THROW(RegressionDataset(at::zeros({3}), targets), Error);
  EXPECT_THROW(RegressionDataset(at::zeros({0, 2}), at::zeros({0, 1})), Error);
  expect_error([&] { RegressionDataset(inputs.to(at::kDouble), targets); }, {"float32"});
  expect_error([] { ReviewDataset(some_records(), -1); }, {"at most -1"});
  expect_error([] { toy_regression(0, 0, 1, 1); }, {"0 rows"});
  expect_error([] { toy_regression(0, 1, 0, 1); }, {"0 features"});
  expect_error([] { toy_regression(0, 1, 1, 0); }, {"0 outputs"});
}

TEST(ToyRegression, IsTheSameEverywhere) {
  const RegressionDataset data = toy_regression(/*seed=*/1, /*n=*/100, /*features=*/7,
                                                /*outputs=*/3);
  ASSERT_EQ(data.size(), 100);
  const Batch batch = data.batch(Indices{0});
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{1, 7}));
  EXPECT_EQ(batch.targets.sizes(), (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(batch.loss_terms, 3);
  EXPECT_EQ(toy_regression(1, 100, 7, 3).fingerprint(), data.fingerprint());
  EXPECT_NE(toy_regression(2, 100, 7, 3).fingerprint(), data.fingerprint());
  // Pinned: a compiler or machine on which this differs would train on other numbers.
  EXPECT_EQ(data.fingerprint(), "ec4f0b4e910f930a061e6239a6028d7c2347425ec848b920ea6314f6b174ed1c");
}

/// One of each kind, for what is asked of all of them.
std::vector<std::shared_ptr<const Dataset>> one_of_each() {
  return {std::make_shared<LanguageModelDataset>(TokenStream::from_bytes("abcdefghi"), 2),
          std::make_shared<ReviewDataset>(some_records()),
          std::make_shared<RegressionDataset>(toy_regression(0, 4, 2, 1))};
}

TEST(Dataset, RefusesSamplesThatAreNotThere) {
  for (const auto& data : one_of_each()) {
    ASSERT_EQ(data->size(), 4);
    expect_error([&] { data->batch(Indices{0, 4}); }, {"sample 4 asked for"});
    expect_error([&] { data->batch(Indices{-1}); }, {"sample -1 asked for"});
  }
}

TEST(Dataset, NoSamplesAreABatchWithoutRows) {
  for (const auto& data : one_of_each()) {
    const Batch batch = data->batch({});
    EXPECT_EQ(batch.inputs.size(0), 0);
    EXPECT_GE(batch.inputs.size(1), 1);
    EXPECT_EQ(batch.targets.size(0), 0);
    EXPECT_EQ(batch.loss_terms, 0);
  }
}

TEST(Dataset, ABatchIsItsSamplesOneByOne) {
  for (const auto& data : one_of_each()) {
    const Indices order{3, 1, 2};
    const Batch all = data->batch(order);
    for (std::int64_t row = 0; row < 3; ++row) {
      const Batch one = data->batch(Indices{order[static_cast<std::size_t>(row)]});
      EXPECT_TRUE(at::equal(all.inputs[row].narrow(0, 0, one.inputs.size(1)), one.inputs[0]));
      EXPECT_TRUE(at::equal(all.targets[row], one.targets[0]));
    }
  }
}

TEST(Dataset, FingerprintsTellDataSetsApart) {
  std::set<std::string> fingerprints;
  for (const auto& data : one_of_each()) fingerprints.insert(data->fingerprint());
  const TokenStream text = TokenStream::from_bytes("abcdefghi");
  fingerprints.insert(LanguageModelDataset(text, 3).fingerprint());
  fingerprints.insert(ReviewDataset(some_records(), 2).fingerprint());
  EXPECT_EQ(fingerprints.size(), 5U);
}

}  // namespace
}  // namespace zero::data

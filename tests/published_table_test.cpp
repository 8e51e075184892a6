// The memory table that was published for SmolLM2-360M, fp32, AdamW, 2 ranks, by the formulas of
// the real strategies at the real size. Nothing is trained: parameters get storage and no values,
// so that their pages are never touched.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>

#include <tests/support/ranks.hpp>
#include <tools/ladder/ladder_report.hpp>
#include <zero/distributed/fake/fake_communicator.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/registry.hpp>

namespace zero::testing {
namespace {

using ladder::mib;
using memory::Category;

constexpr int kRanks = 2;

class NoValues final : public nn::ParameterSource {
 public:
  void fill(const nn::Parameter&, at::Tensor&) override {}
};

struct Columns {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double total = 0;
};

std::shared_ptr<nn::Llama> smollm2_360m(std::int64_t classes) {
  nn::LlamaConfig config = nn::preset("smollm2-360m");
  config.classes = classes;
  const nn::DeferredStorage deferred;
  return std::make_shared<nn::Llama>(config);
}

// Mean over the ranks, MiB. Also sees that a rank holds the parameters that its formula says.
Columns columns_of(const std::string& mode, std::int64_t classes) {
  train::Registry registry;
  train::register_all_chapters(registry);
  Columns mean;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::int64_t before = memory::snapshot()[Category::kParameters];
    const auto model = smollm2_360m(classes);
    dist::FakeCommunicator communicator(rank, kRanks);
    NoValues values;
    const auto strategy = registry.make(mode, {*model, communicator, optim::adamw(), &values});
    const train::ModelStateBytes bytes = strategy->predicted_bytes();
    EXPECT_EQ(memory::snapshot()[Category::kParameters] - before, bytes.parameters);
    mean.parameters += mib(bytes.parameters) / kRanks;
    mean.gradients += mib(bytes.gradients) / kRanks;
    mean.optimizer += mib(bytes.optimizer) / kRanks;
    mean.total += mib(bytes.total()) / kRanks;
  }
  return mean;
}

struct Published {
  std::string mode;
  Columns mib;
};

void PrintTo(const Published& row, std::ostream* out) { *out << row.mode; }

class PublishedTable : public ::testing::TestWithParam<Published> {};

TEST(PublishedModel, HasThePublishedParameters) {
  on_ranks(1, [](dist::Communicator&) {
    const nn::ParameterList classifier = nn::list_parameters(*smollm2_360m(/*classes=*/5));
    EXPECT_EQ(classifier.numel(), 361'825'920);
    EXPECT_EQ(classifier.size(), 291U);
    const nn::ParameterList language_model = nn::list_parameters(*smollm2_360m(/*classes=*/0));
    EXPECT_EQ(language_model.numel(), 361'821'120);
    EXPECT_EQ(language_model.size(), 290U);
  });
}

TEST_P(PublishedTable, ClassifierComesOutWithin0Point01Mib) {
  on_ranks(1, [](dist::Communicator&) {
    constexpr double kColumn = 0.01;
    constexpr double kSum = 0.02;
    const Columns found = columns_of(GetParam().mode, /*classes=*/5);
    EXPECT_NEAR(found.parameters, GetParam().mib.parameters, kColumn);
    EXPECT_NEAR(found.gradients, GetParam().mib.gradients, kColumn);
    EXPECT_NEAR(found.optimizer, GetParam().mib.optimizer, kColumn);
    EXPECT_NEAR(found.total, GetParam().mib.total, kSum);
  });
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTable,
                         ::testing::Values(Published{"ddp", {1380.26, 1380.26, 2760.51, 5521.03}},
                                           Published{"zero1", {1380.26, 1380.26, 1380.26, 4140.78}},
                                           Published{"zero2", {1380.26, 690.12, 1380.26, 3450.65}},
                                           Published{"zero3", {690.12, 690.12, 1380.26, 2760.51}}),
                         [](const auto& info) { return info.param.mode; });

TEST(LanguageModelTable, TotalsAreTheLaddersToTheByte) {
  on_ranks(1, [](dist::Communicator&) {
    // 16 bytes for each of 361,821,120 parameters under DDP; 3/4, 5/8 and 1/2 of that, mean.
    constexpr double kDdp = 16.0 * 361'821'120 / (1 << 20);
    EXPECT_DOUBLE_EQ(columns_of("ddp", /*classes=*/0).total, kDdp);
    EXPECT_DOUBLE_EQ(columns_of("zero1", /*classes=*/0).total, 0.75 * kDdp);
    EXPECT_DOUBLE_EQ(columns_of("zero2", /*classes=*/0).total, 0.625 * kDdp);
    EXPECT_DOUBLE_EQ(columns_of("zero3", /*classes=*/0).total, 0.5 * kDdp);
  });
}

}  // namespace
}  // namespace zero::testing

// What the planner says of every mode that it knows, beside what ranks hold and send.

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <functional>

#include <05_prefetch_overlap/overlap.hpp>
#include <tests/support/ranks.hpp>
#include <tools/plan/check.hpp>
#include <tools/plan/quantity.hpp>
#include <tools/plan/shards.hpp>
#include <zero/distributed/fake/fake_communicator.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;
using memory::Category;

constexpr std::int64_t kTokens = 12;

// Widths that three ranks do not divide.
nn::LlamaConfig config() {
  nn::LlamaConfig config = nn::preset("tiny");
  config.layers = 3;
  config.mlp = 173;
  config.vocabulary = 257;
  return config;
}

data::Batch batch(int rank, int step) {
  data::Batch batch;
  batch.inputs = (at::arange(kTokens) * (7 + step) + 31 * rank).remainder(257).view({1, kTokens});
  batch.targets = (batch.inputs + 1).remainder(257);
  batch.loss_terms = kTokens;
  return batch;
}

// Two steps; bytes of parameters, gradients and optimizer at rest, at the peak, and sent.
at::Tensor measure(dist::Communicator& communicator, const std::string& mode) {
  const std::vector<data::Batch> batches = {batch(communicator.rank(), 0),
                                            batch(communicator.rank(), 1)};
  const memory::Snapshot before = memory::snapshot();
  nn::SeededValues values(3);
  train::Registry registry;
  train::register_all_chapters(registry);
  std::shared_ptr<nn::Llama> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Llama>(config());
  }
  const auto strategy = registry.make(mode, {*model, communicator, optim::adamw(), &values, ""});
  train::Trainer trainer(*strategy);
  trainer.step({batches[0]});
  memory::reset_peaks();
  const dist::Traffic traffic = communicator.traffic();
  trainer.step({batches[1]});
  const dist::Traffic sent = communicator.traffic().since(traffic);
  const memory::Snapshot now = memory::snapshot();
  at::Tensor row = at::zeros({5}, at::kDouble);
  auto* value = row.mutable_data_ptr<double>();
  int column = 0;
  for (const Category c : {Category::kParameters, Category::kGradients, Category::kOptimizer}) {
    value[column++] = static_cast<double>(now[c] - before[c]);
  }
  value[column++] = static_cast<double>(now.total_peak - before.total);
  value[column] =
      static_cast<double>(sent.bytes(Purpose::kGradient) + sent.bytes(Purpose::kParameter));
  return row;
}

ladder::ModeRow row_of(const std::string& mode, const at::Tensor& all) {
  ladder::ModeRow row;
  row.mode = mode;
  const double mib = plan::kMiB;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const double* value = all.const_data_ptr<double>() + 5 * rank;
    ladder::RankRow r;
    r.rank = static_cast<int>(rank);
    r.parameter_mib = value[0] / mib;
    r.gradient_mib = value[1] / mib;
    r.optimizer_mib = value[2] / mib;
    r.peak_mib = value[3] / mib;
    r.sent_gradient_bytes = static_cast<std::int64_t>(value[4]);
    row.ranks.push_back(r);
  }
  return row;
}

// What the planner makes of those of all modes that are `wanted`.
plan::Check check_of(dist::Communicator& communicator,
                     const std::function<bool(const std::string& mode)>& wanted) {
  train::Registry registry;
  train::register_all_chapters(registry);
  const plan::Model model = plan::model_of(config(), "odd");
  ladder::LadderReport report;
  report.world_size = communicator.size();
  report.model = model.name;
  report.parameters = model.parameters;
  report.parameter_bytes = 4 * model.parameters;
  report.task = "text";
  report.dtype = "fp32";
  report.optimizer = "AdamW";
  report.batch_size = 1;
  report.sequence_length = kTokens;
  for (const std::string& mode : registry.modes()) {
    if (!wanted(mode)) continue;
    at::Tensor all = at::zeros({communicator.size(), 5}, at::kDouble);
    const at::Tensor mine = measure(communicator, mode);
    communicator.all_gather(all, mine, Purpose::kControl).wait();
    report.modes.push_back(row_of(mode, all));
  }
  plan::Check check = plan::check_against(report, model);
  EXPECT_THAT(check.failures, ::testing::IsEmpty());
  EXPECT_EQ(check.modes.size(), report.modes.size());
  return check;
}

TEST(PlanCheck, KnowsEveryModeOfSplitTensorsToTheByte) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const plan::Check check =
        check_of(communicator, [](const std::string& mode) { return mode.starts_with("tensor_"); });
    EXPECT_FALSE(check.modes.empty());
    for (const plan::ModeCheck& mode : check.modes) {
      EXPECT_NEAR(mode.states.error(), 0, 1e-12) << mode.mode;
      EXPECT_NEAR(mode.sent->error(), 0, 1e-12) << mode.mode;
    }
  });
}

// Shares of whole tensors are not equal; their mean is. How tight the bound is without the room
// that it leaves for activations and scratch, peak_test.cpp asks.
TEST(PlanCheck, KnowsEveryModeOfWholeTensorsAndBoundsItsPeak) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const plan::Check check = check_of(communicator, [](const std::string& mode) {
      return mode.starts_with("ddp") || mode.starts_with("zero");
    });
    EXPECT_GE(check.modes.size(), 4U);
    for (const plan::ModeCheck& mode : check.modes) {
      EXPECT_LE(mode.peak.measured, mode.peak.predicted) << mode.mode;
    }
  });
}

struct TwoTensors : nn::Model {
  TwoTensors(std::int64_t first, std::int64_t second) {
    add_parameter("first", {first}, nn::Initializer::constant(1));
    add_parameter("second", {second}, nn::Initializer::constant(1));
  }
  at::Tensor loss(const data::Batch&) override { return {}; }
  at::Tensor predict(const data::Batch&) override { return {}; }
};

TEST(PlanCheck, FillsABucketToItsLastByteAsTheEngineDoes) {
  for (const std::int64_t second : {std::int64_t{1}, std::int64_t{2}}) {
    const std::int64_t first = plan::kBucketElements - 1;
    dist::FakeCommunicator communicator(/*rank=*/1, /*size=*/3);
    const nn::DeferredStorage deferred;
    TwoTensors model(first, second);
    const Overlap engine({model, communicator, optim::adamw(), nullptr, ""}, {.stage = 3});
    std::int64_t total = 0;
    for (const train::FlatParameters& bucket : engine.buckets()) total += bucket.layout().total();
    EXPECT_EQ(engine.buckets().size(), second == 1 ? 1U : 2U);
    plan::Model planned;
    planned.tensors = {{"first", first, first}, {"second", second, second}};
    EXPECT_EQ(plan::split_sizes(planned, 3, plan::Grouping::kBucket).total, total) << second;
  }
}

}  // namespace
}  // namespace zero::testing

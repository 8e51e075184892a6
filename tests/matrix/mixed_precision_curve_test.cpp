// Loss curves of a language model in 2-byte types beside that in fp32, over a few hundred steps.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <numeric>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/table.hpp>
#include <zero/data/dataset.hpp>
#include <zero/data/sampler.hpp>
#include <zero/data/text.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

namespace zero::testing {
namespace {

constexpr int kSteps = 300;
constexpr std::int64_t kLength = 32;
constexpr std::int64_t kBatch = 4;  // a rank

struct Curve {
  std::string name;
  std::string mode;
  at::ScalarType dtype;
  bool masters;
  std::vector<double> losses;
  int skipped = 0;
};

// Mean of the losses of steps (end - 20, end].
double smoothed(const Curve& curve, int end) {
  return std::accumulate(curve.losses.begin() + end - 20, curve.losses.begin() + end, 0.0) / 20;
}

void train(dist::Communicator& communicator, const data::Dataset& dataset, Curve& curve) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.dtype = curve.dtype;
  std::shared_ptr<nn::Llama> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Llama>(config);
  }
  nn::SeededValues values(/*seed=*/42);
  optim::OptimizerFactory optimizer = optim::adamw({.learning_rate = 5e-4});
  if (curve.masters) optimizer = optim::with_master_weights(optimizer);
  train::Registry registry;
  train::register_all_chapters(registry);
  const auto strategy = registry.make(curve.mode, {*model, communicator, optimizer, &values, ""});
  train::TrainerOptions options;
  if (curve.dtype == at::kHalf) options.loss_scale = train::LossScaleOptions();
  train::Trainer trainer(*strategy, options);
  data::DistributedSampler sampler(dataset.size(), kBatch * communicator.size(),
                                   communicator.rank(), communicator.size(), /*seed=*/1);
  for (int step = 0; step < kSteps; ++step) {
    const train::StepResult result = trainer.step({dataset.batch(sampler.next())});
    curve.losses.push_back(result.loss);
    curve.skipped += result.skipped ? 1 : 0;
  }
}

std::string table_of(const std::vector<Curve>& curves) {
  std::vector<base::Column> columns = {{"step"}};
  for (const Curve& curve : curves) columns.push_back({curve.name});
  base::Table table(columns);
  for (int end = 20; end <= kSteps; end += 40) {
    std::vector<std::string> row = {std::to_string(end)};
    for (const Curve& curve : curves) row.push_back(base::fixed(smoothed(curve, end), 4));
    table.add_row(row);
  }
  return fmt::format("Loss, mean of 20 steps:\n{}steps left out by fp16: {}\n", table.to_text(),
                     curves.back().skipped);
}

TEST(SlowMixedPrecision, LearnsAsFp32DoesOverThreeHundredSteps) {
  const testing::TestFolder folder;
  on_ranks({.world_size = 2, .total_timeout = std::chrono::seconds(500)},
           [&](dist::Communicator& communicator) {
             const data::LanguageModelDataset dataset(
                 data::text_from_files({"common/zero/data/fixtures/reviews.csv"}), kLength);
             std::vector<Curve> curves = {{"fp32", "ddp", at::kFloat, false, {}},
                                          {"bf16", "tensor_zero3", at::kBFloat16, true, {}},
                                          {"bf16, no masters", "ddp", at::kBFloat16, false, {}},
                                          {"fp16", "tensor_zero2", at::kHalf, true, {}}};
             for (Curve& curve : curves) train(communicator, dataset, curve);
             if (communicator.rank() == 0) {
               std::ofstream(folder / "table") << table_of(curves);
             }
             const double fp32 = smoothed(curves[0], kSteps);
             EXPECT_LT(fp32, 0.75 * curves[0].losses.front()) << "nothing was learned";
             // One part in a hundred of what was learned.
             const double tolerance = 0.01 * (curves[0].losses.front() - fp32);
             EXPECT_NEAR(smoothed(curves[1], kSteps), fp32, tolerance);
             EXPECT_NEAR(smoothed(curves[3], kSteps), fp32, tolerance);
             EXPECT_GT(smoothed(curves[2], kSteps), fp32 + tolerance)
                 << "without master weights it should be worse: the test tells nothing apart";
             EXPECT_LT(curves[3].skipped, 10);
           });
  // Ranks' own output is shown only where they fail.
  std::cout << std::ifstream(folder / "table").rdbuf();
}

}  // namespace
}  // namespace zero::testing

#pragma once

#include <numeric>
#include <string>
#include <vector>

#include <tools/ladder/data/dataset.hpp>
#include <tools/ladder/data/sampler.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

#include "batch_model.hpp"
#include "deferred.hpp"
#include "modes.hpp"

namespace zero::testing {

/// How the tiny language model is trained, on 8 sequences a step over all ranks.
struct Training {
  std::string mode = "ddp";
  at::ScalarType dtype = at::kFloat;
  std::int64_t steps = 200;
  double learning_rate = 1e-3;
  bool master_weights = false;
};

struct Curve {
  std::vector<double> losses;  ///< of each step's global batch; the same numbers on every rank
  int skipped = 0;             ///< steps left out because a float16 gradient overflowed

  /// Mean of the last `count` losses.
  double end(std::ptrdiff_t count) const {
    return std::accumulate(losses.end() - count, losses.end(), 0.0) / static_cast<double>(count);
  }
};

/// Called by all ranks.
inline Curve curve_of(const dist::Mesh& mesh, const data::Dataset& dataset,
                      const Training& training) {
  nn::LlamaConfig config = tools::preset("tiny");
  config.dtype = training.dtype;
  const auto model = make_deferred<nn::Llama>(config);
  nn::SeededValues values(42);
  optim::OptimizerFactory optimizer = optim::adamw({.learning_rate = training.learning_rate});
  if (training.master_weights) optimizer = optim::with_master_weights(optimizer);
  const auto strategy = make_strategy(training.mode, {*model, mesh, optimizer, &values});
  train::StepOptions options;
  if (training.dtype == at::kHalf) options.loss_scale = train::LossScaleOptions();
  tools::Trainer trainer(*strategy, losses_of(*strategy), options);
  data::DistributedSampler sampler(dataset.size(), /*global_batch=*/8, mesh.data().rank(),
                                   mesh.data().size(), /*seed=*/1);
  Curve curve;
  for (std::int64_t step = 0; step < training.steps; ++step) {
    const tools::StepResult result = trainer.step({dataset.batch(sampler.next())});
    curve.losses.push_back(result.loss);
    curve.skipped += result.skipped ? 1 : 0;
  }
  return curve;
}

}  // namespace zero::testing

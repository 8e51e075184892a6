#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/registry.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/optimizer.hpp>

#include "modes.hpp"
#include "random_model.hpp"
#include "same_bits.hpp"
#include "whole_weights.hpp"

namespace zero::testing {

/// Every strategy of all chapters that has the bits of chapter 00, in its default variant.
std::vector<std::string> all_strategies();

/// Whether `mode` gathers units when they run, so that all ranks must run the same ones.
bool gathers_by_unit(const std::string& mode);

/// Averaged gradients, whole on every rank: what owners hold, put together. Undefined where no rank
/// used the parameter. Called by all ranks after finish_backward().
std::vector<at::Tensor> whole_gradients(train::Strategy& strategy);

struct SessionOptions {
  RandomModelConfig model;
  optim::OptimizerFactory optimizer = optim::adamw({.learning_rate = 0.01});
  train::Accumulation accumulation = train::Accumulation::kLocal;
  train::StepOptions trainer;
  dist::ReduceType reduce_type = dist::ReduceType::kOwn;
  std::uint64_t seed = 3;  ///< of the first values
};

/// For a model of these parts.
inline SessionOptions with_parts(const std::string& parts) {
  SessionOptions options;
  options.model.parts = parts;
  return options;
}

/// One rank that trains a random model under one strategy.
class Session {
 public:
  /// Called by all ranks.
  Session(dist::Communicator& communicator, const std::string& mode, SessionOptions options);
  Session(dist::Communicator& communicator, const std::string& mode);

  dist::Communicator& communicator() { return communicator_; }
  RandomModel& model() { return *model_; }
  train::Strategy& strategy() { return *strategy_; }
  tools::Trainer& trainer() { return *trainer_; }

  /// This rank's batch of `step`.
  data::Batch batch(int step, std::int64_t samples = 4) const {
    return random_model_batch(options_.model, /*seed=*/17, communicator_.rank(), step, samples);
  }
  /// A step with that batch.
  tools::StepResult step(int number) { return trainer_->step({batch(number)}); }

  /// Copies of all weights, whole, in registration order. Called by all ranks.
  std::vector<at::Tensor> weights();

  std::vector<at::Tensor> gradients() { return whole_gradients(*strategy_); }

 private:
  dist::Communicator& communicator_;
  SessionOptions options_;
  std::shared_ptr<RandomModel> model_;
  nn::SeededValues values_;
  std::unique_ptr<train::Strategy> strategy_;
  std::unique_ptr<tools::Trainer> trainer_;
};

/// Whether every element of `a` is within `tolerance` times the largest of its tensor in `b`.
/// An undefined tensor counts as zeros.
::testing::AssertionResult close_to(const std::vector<at::Tensor>& a,
                                    const std::vector<at::Tensor>& b, double tolerance);

}  // namespace zero::testing

#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/optim/optimizer.hpp>
#include <zero/train/loop/step.hpp>

namespace zero {

/// What an engine says of a step that has ended. Seconds are those of this rank; the rest is the
/// same on all ranks.
struct StepMetrics {
  std::int64_t step = 0;    ///< steps before this one, skipped ones too
  bool updated = false;     ///< false: a gradient was not finite and the step was skipped
  double loss = 0;          ///< mean over all loss terms of all ranks and micro-batches
  float gradient_norm = 0;  ///< L2, before clipping; 0 if the step was skipped
  std::vector<double> learning_rates;  ///< by parameter group, of this update
  double loss_terms = 0;               ///< of all ranks; 0 if the batches do not say how many
  double seconds = 0;                  ///< since the end of the step before
  double exposed_seconds = 0;          ///< of them, those that this rank waited for collectives
};

/// Called after each step, on every rank.
using StepCallback = std::function<void(const StepMetrics& metrics)>;

/// The learning rate of each group, in the order of its settings; empty if it does not tell.
std::vector<double> learning_rates(const optim::Optimizer& optimizer);

/// Measures an engine's steps for a callback.
class StepMeter {
 public:
  /// `strategy` must outlive this object.
  StepMeter(train::Strategy& strategy, StepCallback callback);

  /// Adds learning rates and seconds of the step that has just ended.
  void measure(StepMetrics& metrics);
  /// Calls the callback. Called by all ranks; blocks. Throws zero::Error on all of them if it
  /// throws on any.
  void report(const StepMetrics& metrics);

 private:
  train::Strategy& strategy_;
  StepCallback callback_;
  std::chrono::steady_clock::time_point last_;
  double exposed_before_;
};

}  // namespace zero

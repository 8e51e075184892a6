#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <zero/data/batch.hpp>
#include <zero/train/loss_scale.hpp>
#include <zero/train/strategy.hpp>
#include <zero/train/update.hpp>

namespace zero::train {

/// Where the seconds of a step went, on this rank. Communication is time spent waiting for
/// collectives in any phase; the other phases exclude it.
struct PhaseSeconds {
  double forward = 0;
  double backward = 0;
  double communication = 0;
  double optimizer = 0;
  double total = 0;      ///< the sum of these four
  double in_flight = 0;  ///< the part of it in which any collective was in flight
};

struct StepResult {
  double loss = 0;          ///< mean over all loss terms of all ranks and micro-batches
  float gradient_norm = 0;  ///< before clipping; 0 where nothing is clipped
  /// What the loss was multiplied by for backward; not contained in `loss` and `gradient_norm`.
  double loss_scale = 1;
  /// A gradient was infinite or NaN on some rank, so that no rank updated anything; the loss scale,
  /// if there is one, is smaller now.
  bool skipped = false;
  PhaseSeconds seconds;
};

struct TrainerOptions {
  double clip_norm = 0;  ///< largest norm of the gradient; 0: do not clip
  /// Steps done before this run, if it resumes from a checkpoint: steps() begins there.
  std::int64_t first_step = 0;
  /// Scales the loss for backward, as float16 needs it; the optimizer must be able to undo it
  /// (optim::with_master_weights()). nullopt: the loss is not scaled.
  std::optional<LossScaleOptions> loss_scale = std::nullopt;
  optim::Norm norm = optim::Norm::kL2;  ///< which norm clip_norm limits
  /// What to do with a step whose gradient is infinite or NaN, if no loss scale can be halved.
  OnNonfiniteGradient on_nonfinite_gradient = OnNonfiniteGradient::kError;
};

/// The training loop of every chapter. All ranks call the same functions in the same order.
class Trainer {
 public:
  /// Called by all ranks. Throws zero::Error on all of them if their options differ, or if the loss
  /// is to be scaled and the optimizer cannot undo it.
  explicit Trainer(Strategy& strategy, TrainerOptions options = {});
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// One optimizer step over this rank's `micro_batches`: at least one, and the same number on
  /// every rank. Blocks. Ranks may have different numbers of loss terms, or none: the gradient is
  /// that of the mean over all of them. Throws zero::Error on all ranks if a loss or gradient of
  /// any rank is not finite, if no rank has a loss term, or if ranks pass different numbers of
  /// micro-batches or different settings to their optimizers. Parameters and optimizer states are
  /// then as before the step, there are no gradients, and the next step may follow.
  ///
  /// With a loss scale, all ranks skip the step if a gradient is infinite or NaN on any rank:
  /// parameters, optimizer states and step counts stay, and the scale is halved. If it is 1
  /// already, or there is none, TrainerOptions::on_nonfinite_gradient says whether the step is
  /// skipped or an error.
  StepResult step(const std::vector<data::Batch>& micro_batches);

  /// Drops the gradients, which step() leaves readable. The next step() does it by itself.
  void zero_grad() { strategy_.zero_grad(); }

  /// Mean loss over the batches of all ranks, without gradients. Every rank passes the same number
  /// of batches, and at least one batch of some rank has a loss term (zero::Error on all ranks
  /// otherwise).
  virtual double evaluate(const std::vector<data::Batch>& batches);

  std::int64_t steps() const { return steps_; }
  /// Those of them that updated nothing because a gradient was not finite.
  std::int64_t skipped_steps() const { return skipped_steps_; }

  /// The loss scale, if there is one, for a checkpoint to save and restore.
  std::optional<LossScale>& loss_scale() { return loss_scale_; }

 protected:
  /// Adds the time since the last call to a phase of the step.
  using EndOfPhase = std::function<void(double PhaseSeconds::*)>;

  /// Forward and backward of all micro-batches, and the reduction. Returns the sum of the losses
  /// over all ranks and micro-batches, each times its terms.
  virtual double run_micro_batches(const std::vector<data::Batch>& micro_batches, double all_terms,
                                   double loss_scale, const EndOfPhase& end_of);
  /// After the update.
  virtual void sync_parameters() { strategy_.sync_parameters(); }
  /// The loss terms of all ranks; checks that they have the same number of batches.
  virtual double count_terms(const std::vector<data::Batch>& batches);
  /// `loss` times `terms`, summed over the ranks. Throws zero::Error on all if one is not finite.
  double loss_of_all_ranks(double loss, std::int64_t terms);

  Strategy& strategy() { return strategy_; }
  /// What all ranks must have in common.
  std::string options_text() const;

 private:
  void end(StepResult& result);
  void run(const std::vector<data::Batch>& micro_batches, StepResult& result);

  Strategy& strategy_;
  TrainerOptions options_;
  std::optional<LossScale> loss_scale_;
  std::int64_t steps_ = 0;
  std::int64_t skipped_steps_ = 0;
};

}  // namespace zero::train

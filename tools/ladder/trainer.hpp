#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <tools/ladder/data/batch.hpp>
#include <zero/train/loop/step.hpp>

namespace zero::tools {

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

/// How a batch becomes a loss: the mean over its data::Batch::loss_terms, 0 if there are none.
using Loss = std::function<at::Tensor(const data::Batch& batch)>;

/// That of a model, which must outlive it; see data::loss_of().
template <typename Model>
Loss losses_of(Model& model) {
  return [&model](const data::Batch& batch) { return data::loss_of(model, batch); };
}

/// The training loop of the ladder, of tests and of demonstrations. All ranks call the same
/// functions in the same order.
class Trainer {
 public:
  /// Called by all ranks. Throws zero::Error on all of them if their options differ, or if the loss
  /// is to be scaled and the optimizer cannot undo it.
  Trainer(train::Strategy& strategy, Loss loss, const train::StepOptions& options = {});
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// One optimizer step over this rank's `micro_batches`: at least one, and the same number on
  /// every rank. Blocks. Ranks may have different numbers of loss terms, or none: the gradient is
  /// that of the mean over all of them. Throws zero::Error on all ranks if a loss or gradient of
  /// any rank is not finite, if no rank has a loss term, if ranks pass different numbers of
  /// micro-batches or different settings to their optimizers, or if ranks of one data index, which
  /// share the work, pass different micro-batches. Parameters and optimizer states are then as
  /// before the step, there are no gradients, and the next step may follow.
  ///
  /// With a loss scale, all ranks skip the step if a gradient is infinite or NaN on any rank:
  /// parameters, optimizer states and step counts stay, and the scale is halved. If it is 1
  /// already, or there is none, train::StepOptions::on_nonfinite_gradient says whether the step is
  /// skipped or an error.
  StepResult step(const std::vector<data::Batch>& micro_batches);

  /// Drops the gradients, which step() leaves readable. The next step() does it by itself.
  void zero_grad() { strategy_.zero_grad(); }

  /// Mean loss over the batches of all ranks, without gradients. Every rank passes the same number
  /// of batches, and at least one batch of some rank has a loss term (zero::Error on all ranks
  /// otherwise).
  double evaluate(const std::vector<data::Batch>& batches);

  /// Steps so far, skipped ones too; they begin at train::StepOptions::first_step.
  std::int64_t steps() const { return step_.number(); }
  /// Those of them that updated nothing because a gradient was not finite.
  std::int64_t skipped_steps() const { return step_.skipped(); }

  /// The loss scale, if there is one, for a checkpoint to save and restore.
  std::optional<train::LossScale>& loss_scale() { return step_.loss_scale(); }

 protected:
  /// Adds the time since the last call to a phase of the step.
  using EndOfPhase = std::function<void(double PhaseSeconds::*)>;

  /// Forward and backward of all micro-batches, and the reduction. Returns their losses; zeros in
  /// stages of a pipeline but the last.
  virtual std::vector<double> run_micro_batches(const std::vector<data::Batch>& micro_batches,
                                                double all_terms, const EndOfPhase& end_of);
  /// The same without backward.
  virtual std::vector<double> run_forward(const std::vector<data::Batch>& batches);
  /// After the update.
  virtual void sync_parameters() { strategy_.sync_parameters(); }
  /// Throws zero::Error if a batch does not fit the model, where the model would not.
  virtual void check_batch(const data::Batch& batch) const {}

  train::Step& step_of_all() { return step_; }

 private:
  at::Tensor forward(const data::Batch& batch);
  double count_terms(const std::vector<data::Batch>& batches);
  static train::Step::Losses of_step(std::vector<double> losses,
                                     const std::vector<data::Batch>& batches, double all_terms);

  train::Strategy& strategy_;
  Loss loss_;
  train::Step step_;
};

}  // namespace zero::tools

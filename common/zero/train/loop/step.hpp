#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <zero/distributed/statement.hpp>
#include <zero/train/loop/loss_scale.hpp>
#include <zero/train/strategy.hpp>

namespace zero::train {

/// What to do with a step in which a gradient is infinite or NaN on any rank. No rank updates
/// anything in either case.
enum class OnNonfiniteGradient : std::uint8_t {
  kError,  ///< zero::Error on all ranks that names the parameter and the ranks
  kSkip,   ///< the step is skipped and counted
};

/// Weights `loss`, the mean over the `terms` of this rank's micro-batch, and multiplies it by the
/// loss scale. Added up over micro-batches and averaged over `ranks`, the gradients are then that
/// of the mean over `all_terms`, the terms of the step on all ranks. If all micro-batches have the
/// same number of terms it is loss / micro-batches, and `loss` itself for a single one.
at::Tensor weighted_loss(const at::Tensor& loss, double terms, double all_terms, int ranks,
                         double scale = 1);

struct StepOptions {
  double clip_norm = 0;  ///< largest L2 norm of the gradient; 0: do not clip
  /// Steps done before this run, if it resumes from a checkpoint.
  std::int64_t first_step = 0;
  /// Scales the loss for backward, as float16 needs it; the optimizer must be able to undo it
  /// (optim::with_master_weights()). nullopt: the loss is not scaled.
  std::optional<LossScaleOptions> loss_scale = std::nullopt;
  /// What to do with a step whose gradient is infinite or NaN, if no loss scale can be halved.
  OnNonfiniteGradient on_nonfinite_gradient = OnNonfiniteGradient::kError;
};

/// The one optimizer step of Engine, of a pipeline and of the ladder: weighs losses, checks, clips,
/// updates, skips and gives up, and counts. All ranks call the same functions in the same order.
class Step {
 public:
  /// `strategy` must outlive this object. Called by all ranks; blocks. Throws zero::Error on all of
  /// them if their options differ, or `more`, or if the loss is to be scaled and the optimizer
  /// cannot undo it. `caller`: a literal for messages, "Engine::Engine".
  Step(Strategy& strategy, const StepOptions& options, const char* caller,
       const std::string& more = "");

  /// The loss to give to backward(). `all_terms`: see weighted_loss().
  at::Tensor weighted(const at::Tensor& loss, double terms, double all_terms) const;
  /// Runs autograd. After the last micro-batch gradients are averages; those that no rank has used
  /// are zeros until end() drops them, unless the program may look at them. Blocks.
  void backward(at::Tensor loss, bool is_last, bool program_may_look = false);

  /// The losses of this rank's micro-batches, each the mean over its terms. Stages of a pipeline
  /// but the last have as many, which do not count.
  struct Losses {
    std::vector<double> values;
    std::vector<double> terms;
    double all_terms = 0;       ///< of the step on all ranks
    dist::Statement said = {};  ///< what the rank has to say besides
  };
  /// The mean over all terms. Called by all ranks; blocks. Throws zero::Error on all of them if a
  /// loss is not finite.
  double mean_loss(const Losses& losses) { return exchange(losses, /*is_end=*/false); }

  /// Clips and updates, after backward() of the last micro-batch. `losses`: of this rank. Blocks.
  /// Returns whether it updated; Strategy::sync_parameters() must follow then. After an error the
  /// caller drops the gradients. If a gradient is not finite on any rank, no rank does, and the
  /// step is skipped if the loss scale can be halved or the options say so. Throws zero::Error on
  /// all ranks otherwise, if a loss is not finite, if they have said something that is wrong or
  /// have other settings of their optimizers, or if programs have written other values into
  /// parameters or at a time at which a write does not count. Ranks tell each other all of that in
  /// one exchange.
  bool end(const Losses& losses);
  /// The mean over all terms in the last end().
  double loss() const { return loss_; }

  /// Updates so far, and before this run.
  std::int64_t updates() const { return updates_; }
  void resume_after(std::int64_t updates) { updates_ = updates; }
  /// Steps that updated nothing because a gradient was not finite.
  std::int64_t skipped() const { return skipped_; }
  /// Of this step, in messages.
  std::int64_t number() const { return updates_ + skipped_; }
  /// From now on the norm is computed without clipping too. All ranks must set the same.
  void measure_norm(bool measure) { measures_norm_ = measure; }
  /// Norm of the gradient before clipping in the last step that updated; 0 if it was not computed.
  float gradient_norm() const { return gradient_norm_; }
  /// What losses are multiplied by; 1 without a loss scale.
  double scale() const { return loss_scale_ ? loss_scale_->value() : 1; }
  std::optional<LossScale>& loss_scale() { return loss_scale_; }

 private:
  double exchange(Losses losses, bool is_end);
  bool update();
  bool measures() const { return options_.clip_norm > 0 || measures_norm_; }

  Strategy& strategy_;
  StepOptions options_;
  std::optional<LossScale> loss_scale_;
  std::int64_t updates_;
  std::int64_t skipped_ = 0;
  bool measures_norm_ = false;
  double loss_ = 0;
  float gradient_norm_ = 0;
};

}  // namespace zero::train

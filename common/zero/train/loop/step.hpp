#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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

/// The one optimizer step that Trainer and Engine are made of: weighs losses, checks, clips,
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
  /// Runs autograd. After the last micro-batch gradients are averages. Blocks.
  void backward(at::Tensor loss, bool is_last);

  /// The mean over all terms of the step, `all_terms`, given this rank's losses and the terms of
  /// each. Called by all ranks; blocks. Throws zero::Error on all of them if a loss is not finite.
  double mean_loss(const std::vector<double>& losses, const std::vector<double>& terms,
                   double all_terms) const;

  struct Calls {
    std::function<void()> verify;  ///< throws, on all ranks, if no rank may update
    std::function<void()> sync;    ///< after an update: Strategy::sync_parameters()
    std::function<void()> drop;    ///< after an error: drops the gradients
  };
  /// Clips and updates, after backward() of the last micro-batch. Blocks. Returns whether it
  /// updated: if a gradient is not finite on any rank, no rank does, and the step is skipped if the
  /// loss scale can be halved or the options say so. Throws zero::Error on all ranks otherwise.
  bool end(const Calls& calls);

  /// A digest of the optimizer's settings and of Strategy::writes(), exact in a double, to compare
  /// between ranks.
  double settings_digest() const;
  /// Called by all ranks with the digests of all ranks, in rank order. Throws zero::Error on all of
  /// them if digests differ, and names two values and their ranks; or if the program wrote into a
  /// parameter at a time at which a write does not count. Otherwise calls
  /// Strategy::forget_writes().
  void verify_settings(const std::vector<double>& digests);

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
  bool update();

  Strategy& strategy_;
  StepOptions options_;
  std::optional<LossScale> loss_scale_;
  std::int64_t updates_;
  std::int64_t skipped_ = 0;
  bool measures_norm_ = false;
  float gradient_norm_ = 0;
};

/// Whether `wrong` is true on any rank, `digests` of the data ranks, exchanged already, differ, or
/// `digest` differs from that of a tensor rank. Called by all ranks of all axes; blocks.
bool any_wrong(const dist::Mesh& mesh, bool wrong, const std::vector<double>& digests,
               double digest);

/// "rank 1", "ranks 1, 3": for messages.
std::string ranks_text(const std::vector<int>& ranks);

/// The message for a step in which the loss of `ranks` is infinite or NaN.
std::string loss_not_finite(std::int64_t step, const std::string& ranks);

}  // namespace zero::train

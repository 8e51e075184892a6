#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include <zero/optim/norm.hpp>
#include <zero/train/loss_scale.hpp>
#include <zero/train/strategy.hpp>

/// What Engine and Trainer have in common: how a loss counts and how a step ends.
namespace zero::train {

/// What becomes of a step in which a gradient is infinite or NaN on any rank. No rank updates
/// anything in either case.
enum class OnNonfiniteGradient : std::uint8_t {
  kError,  ///< zero::Error on all ranks that names the parameter and the ranks
  kSkip,   ///< the step is left out and counted
};
/// "error", "skip".
const char* name(OnNonfiniteGradient what);

/// How large the gradient of a micro-batch counts.
struct LossWeight {
  double terms;      ///< of this rank's micro-batch
  double all_terms;  ///< what the gradient is divided by: the terms of the step on all ranks
  int ranks;         ///< averages divide by it as well
  double scale = 1;  ///< loss scale
};

/// `loss`, the mean over its terms, such that the average over ranks of the gradients, added up
/// over micro-batches, is the gradient of the mean over all terms. Where all micro-batches have as
/// many terms it is loss / micro-batches, and `loss` itself for a single one.
at::Tensor weighted_loss(const at::Tensor& loss, const LossWeight& weight);

struct UpdateOptions {
  double clip_norm = 0;  ///< largest norm of the gradient; 0: do not clip
  optim::Norm norm = optim::Norm::kL2;
  OnNonfiniteGradient on_nonfinite_gradient = OnNonfiniteGradient::kError;
};

struct UpdateResult {
  bool skipped = false;
  float gradient_norm = 0;  ///< before clipping; 0 where nothing is clipped or updated
};

/// Clips and updates, after finish_backward() of the last micro-batch; without sync_parameters().
/// Called by all ranks. Where a gradient is not finite on any rank, no rank updates: the step is
/// skipped where `scale` (null: none) can be halved, else as the options say. `step` is for
/// messages.
UpdateResult update(Strategy& strategy, const UpdateOptions& options, LossScale* scale,
                    std::int64_t step);

/// A number that differs where ranks have given their optimizers different settings; exact in a
/// double.
double settings_digest(const optim::Optimizer& optimizer);

/// Called by all ranks with the digests of all ranks, in rank order. zero::Error on all of them,
/// with two values and their ranks, where they differ.
void verify_settings(Strategy& strategy, const std::vector<double>& digests);

}  // namespace zero::train

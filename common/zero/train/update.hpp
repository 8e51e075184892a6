#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include <zero/optim/norm.hpp>
#include <zero/train/loss_scale.hpp>
#include <zero/train/strategy.hpp>

/// What Engine and Trainer share: how a loss is weighted and how a step ends.
namespace zero::train {

/// What to do with a step in which a gradient is infinite or NaN on any rank. No rank updates
/// anything in either case.
enum class OnNonfiniteGradient : std::uint8_t {
  kError,  ///< zero::Error on all ranks that names the parameter and the ranks
  kSkip,   ///< the step is skipped and counted
};
/// "error", "skip".
const char* name(OnNonfiniteGradient what);

/// The weight of a micro-batch in the gradient of its step.
struct LossWeight {
  double terms;      ///< of this rank's micro-batch
  double all_terms;  ///< what the gradient is divided by: the terms of the step on all ranks
  int ranks;         ///< averages divide by it as well
  double scale = 1;  ///< loss scale
};

/// Weights `loss`, the mean over its own terms: added up over micro-batches and averaged over
/// ranks, the gradients are then that of the mean over all terms. If all micro-batches have the
/// same number of terms it is loss / micro-batches, and `loss` itself for a single one.
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

/// Clips and updates, after finish_backward() of the last micro-batch; does not call
/// sync_parameters(). Called by all ranks. If a gradient is not finite on any rank, no rank
/// updates: the step is skipped if `scale` (null: none) can be halved, else the options decide.
/// `step` is for messages.
UpdateResult update(Strategy& strategy, const UpdateOptions& options, LossScale* scale,
                    std::int64_t step);

/// "rank 1", "ranks 1, 3": for messages.
std::string ranks_text(const std::vector<int>& ranks);

/// A digest of the optimizer's settings and of Strategy::writes(), exact in a double, to compare
/// between ranks.
double settings_digest(Strategy& strategy);

/// Called by all ranks with the digests of all ranks, in rank order. Throws zero::Error on all of
/// them if digests differ, and names two values and their ranks; or if the program wrote into a
/// parameter at a time at which a write does not count. Otherwise calls Strategy::forget_writes().
void verify_settings(Strategy& strategy, const std::vector<double>& digests);

}  // namespace zero::train

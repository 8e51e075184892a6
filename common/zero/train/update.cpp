#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/train/update.hpp>

namespace zero::train {

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

const char* name(OnNonfiniteGradient what) {
  return what == OnNonfiniteGradient::kSkip ? "skip" : "error";
}

at::Tensor weighted_loss(const at::Tensor& loss, const LossWeight& weight) {
  const double divisor = weight.all_terms / (weight.terms * weight.ranks);
  at::Tensor share = loss;
  // No multiplication by 1: it would be one more operation for autograd.
  if (divisor != 1.0) {
    share = divisor == std::floor(divisor) ? loss / divisor : loss * (1.0 / divisor);
  }
  return weight.scale == 1.0 ? share : share * weight.scale;
}

namespace {

// "the gradient of 'x' is infinite or NaN on rank 1"; empty where all are finite.
std::string what_is_not_finite(Strategy& strategy, bool norm_is_not) {
  if (const auto bad = strategy.averaged_gradients().first_nonfinite()) {
    return fmt::format("the gradient of '{}' is infinite or NaN on {}", bad->parameter,
                       ranks_text(bad->ranks));
  }
  return norm_is_not ? "the norm of the gradient is too large for a float" : "";
}

}  // namespace

UpdateResult update(Strategy& strategy, const UpdateOptions& options, LossScale* scale,
                    std::int64_t step) {
  UpdateResult result;
  const bool clips = options.clip_norm > 0;
  if (clips) result.gradient_norm = strategy.clip_grad_norm(options.clip_norm, options.norm);
  // A finite norm means finite gradients: nothing more has to be read.
  const bool well = clips && std::isfinite(result.gradient_norm);
  const std::string wrong = well ? "" : what_is_not_finite(strategy, clips);
  if (wrong.empty()) {
    strategy.optimizer_step();
    if (scale != nullptr) scale->note_good_step();
    return result;
  }
  const bool halved = scale != nullptr && scale->note_overflow();
  if (halved || options.on_nonfinite_gradient == OnNonfiniteGradient::kSkip) {
    return {/*skipped=*/true, /*gradient_norm=*/0};
  }
  throw Error(fmt::format(
      "step {}: {}{}; no rank has changed its weights ({}on_nonfinite_gradient = skip leaves such "
      "steps out)",
      step, wrong, scale == nullptr ? "" : " at a loss scale of 1",
      scale == nullptr ? "" : "a lower learning rate or clipping may help, or bfloat16; "));
}

namespace {

std::string settings_text(const optim::Optimizer& optimizer) {
  const optim::Optimizer::Settings settings = optimizer.settings();
  std::string text = fmt::format("kind '{}'\n", settings.kind);
  for (std::size_t g = 0; g < settings.groups.size(); ++g) {
    for (const auto& [key, value] : settings.groups[g]) {
      text += fmt::format("{} {} in group {}\n", key, value, g);
    }
  }
  return text;
}

}  // namespace

double settings_digest(Strategy& strategy) {
  return base::fnv1a_as_double(settings_text(strategy.optimizer()) + strategy.writes().text());
}

void verify_settings(Strategy& strategy, const std::vector<double>& digests) {
  const ParameterWrites writes = strategy.writes();
  if (std::adjacent_find(digests.begin(), digests.end(), std::not_equal_to<>()) == digests.end()) {
    if (!writes.refused().empty()) throw Error(writes.refused());  // the same on all ranks
    strategy.forget_writes();
    return;
  }
  strategy.communicator().verify_same_on_all_ranks("the optimizer's settings",
                                                   settings_text(strategy.optimizer()));
  strategy.communicator().verify_same_on_all_ranks(
      "what the program has written into parameters since the last step", writes.text());
}

}  // namespace zero::train

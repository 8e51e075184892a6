#include <ATen/record_function.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/train/loop/step.hpp>

namespace zero::train {

at::Tensor weighted_loss(const at::Tensor& loss, double terms, double all_terms, int ranks,
                         double scale) {
  const double divisor = all_terms / (terms * ranks);
  at::Tensor share = loss;
  // No multiplication by 1: it would be one more operation for autograd.
  if (divisor != 1.0) {
    share = divisor == std::floor(divisor) ? loss / divisor : loss * (1.0 / divisor);
  }
  return scale == 1.0 ? share : share * scale;
}

namespace {

// "the gradient of 'x' is infinite or NaN on rank 1"; empty where all are finite.
std::string what_is_not_finite(Strategy& strategy, bool norm_is_not) {
  if (const auto bad = strategy.averaged_gradients().first_nonfinite()) {
    return fmt::format("the gradient of '{}' is infinite or NaN on {}", bad->parameter,
                       dist::ranks_text(bad->ranks));
  }
  return norm_is_not ? "the norm of the gradient is too large for a float" : "";
}

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

Step::Step(Strategy& strategy, const StepOptions& options, const char* caller,
           const std::string& more)
    : strategy_(strategy), options_(options), updates_(options.first_step) {
  const dist::CallScope call(strategy.mesh().world(), caller);
  if (options.loss_scale) loss_scale_.emplace(*options.loss_scale);
  const bool skips = options.on_nonfinite_gradient == OnNonfiniteGradient::kSkip;
  dist::verify_same(strategy.mesh().world(), fmt::format("the step in {}", caller),
                    fmt::format("a clip norm of {}\nfirst step {}\n{}\n{} if a gradient is not "
                                "finite\n{}",
                                options.clip_norm, options.first_step,
                                loss_scale_ ? loss_scale_->describe() : "no loss scale",
                                skips ? "a skipped step" : "an error", more));
  strategy_.set_loss_scale(scale());
}

at::Tensor Step::weighted(const at::Tensor& loss, double terms, double all_terms) const {
  return weighted_loss(loss, terms, all_terms, strategy_.communicator().size(), scale());
}

void Step::backward(at::Tensor loss, bool is_last, bool program_may_look) {
  strategy_.set_loss_scale(scale());
  strategy_.set_requires_gradient_sync(is_last);
  strategy_.averaged_gradients().leave_to_report(!program_may_look);
  strategy_.backward(loss);
  loss = at::Tensor();
  strategy_.finish_backward();
}

// `is_end`: of a step, with all that ranks must know before they update.
double Step::exchange(Losses losses, bool is_end) {
  using Ask = AveragedGradients::Ask;
  const dist::Mesh& mesh = strategy_.mesh();
  AveragedGradients& gradients = strategy_.averaged_gradients();
  dist::Statement& mine = losses.said;
  if (is_end) {
    const ParameterWrites written = strategy_.collect_writes();
    if (mine.problem.empty()) mine.problem = written.refused();
    mine.topics.push_back({"the optimizer's settings", settings_text(strategy_.optimizer())});
    mine.topics.push_back(written.topic());
  }
  for (std::size_t m = 0; m < losses.values.size(); ++m) {
    mine.numbers.push_back(losses.values[m] * losses.terms[m]);
    if (!std::isfinite(losses.values[m]) && mine.problem.empty()) {
      mine.problem = fmt::format(
          "step {}: the loss is infinite or NaN on {{ranks}}; no rank has changed its weights (a "
          "mean over no label is NaN: divide the sum by at least 1, and give 0 loss_terms; else a "
          "lower learning rate or clipping may help; on_nonfinite_gradient is for gradients)",
          number());
    }
  }
  const Ask ask = measures() ? Ask::kNorm : Ask::kFinite;
  if (is_end) {
    // With a problem they may be what the program has put in their place.
    const std::vector<double> report = gradients.report(mine.problem.empty() ? ask : Ask::kNothing);
    mine.numbers.insert(mine.numbers.end(), report.begin(), report.end());
  }
  const std::vector<std::vector<double>> all = dist::exchange(mesh, mine);
  if (is_end) {
    strategy_.forget_writes();
    gradients.take(ask, all, losses.values.size());
  }
  // The stages before the last have none.
  std::vector<double> sums(losses.values.size());
  for (int rank = 0; rank < mesh.world().size(); ++rank) {
    if (mesh.place(rank, {"pipeline"}) < mesh.pipeline().size() - 1) continue;
    if (!mesh.shares(rank, {"tensor"})) continue;
    for (std::size_t m = 0; m < sums.size(); ++m) {
      sums[m] += all[static_cast<std::size_t>(rank)][m];
    }
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0) / losses.all_terms;
}

bool Step::end(const Losses& losses) {
  loss_ = exchange(losses, /*is_end=*/true);
  const bool updated = update();
  ++(updated ? updates_ : skipped_);
  return updated;
}

bool Step::update() {
  RECORD_USER_SCOPE("optimizer");
  const bool clips = options_.clip_norm > 0;
  const double limit = clips ? options_.clip_norm : std::numeric_limits<double>::infinity();
  const float norm = measures() ? strategy_.clip_grad_norm(limit) : 0;
  // A finite norm means finite gradients: nothing more has to be read.
  const bool well = measures() && std::isfinite(norm);
  const std::string wrong = well ? "" : what_is_not_finite(strategy_, clips);
  if (wrong.empty()) {
    strategy_.optimizer_step();
    if (loss_scale_) loss_scale_->note_good_step();
    gradient_norm_ = norm;
    return true;
  }
  const bool halved = loss_scale_ && loss_scale_->note_overflow();
  if (halved || options_.on_nonfinite_gradient == OnNonfiniteGradient::kSkip) return false;
  throw Error(fmt::format(
      "step {}: {}{}; no rank has changed its weights ({}on_nonfinite_gradient = skip leaves such "
      "steps out)",
      number(), wrong, loss_scale_ ? " at a loss scale of 1" : "",
      loss_scale_ ? "a lower learning rate or clipping may help, or bfloat16; " : ""));
}

}  // namespace zero::train

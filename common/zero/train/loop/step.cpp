#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <set>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/train/loop/step.hpp>

namespace zero::train {

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string loss_not_finite(std::int64_t step, const std::string& ranks) {
  return fmt::format(
      "step {}: the loss is infinite or NaN on {}; no rank has changed its weights (a lower "
      "learning rate or clipping may help)",
      step, ranks);
}

bool any_wrong(const dist::Mesh& mesh, bool wrong, const std::vector<double>& digests,
               double digest) {
  const auto differ = [](const std::vector<double>& all) {
    return std::ranges::adjacent_find(all, std::not_equal_to<>()) != all.end();
  };
  wrong = wrong || differ(digests);
  if (mesh.data().size() == mesh.world().size()) return wrong;
  const bool along_tensor = differ(dist::all_gather_scalars(mesh.tensor(), {digest}));
  return mesh.any(wrong || along_tensor);
}

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
                       ranks_text(bad->ranks));
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

void Step::backward(at::Tensor loss, bool is_last) {
  strategy_.set_loss_scale(scale());
  strategy_.set_requires_gradient_sync(is_last);
  strategy_.backward(loss);
  loss = at::Tensor();
  strategy_.finish_backward();
}

double Step::mean_loss(const std::vector<double>& losses, const std::vector<double>& terms,
                       double all_terms) const {
  // Each rank sends a flag with its numbers: a maximum over the values could lose a NaN, depending
  // on which rank has it.
  std::vector<double> mine;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    const bool finite = std::isfinite(losses[m]);
    mine.push_back(finite ? losses[m] * terms[m] : 0.0);
    mine.push_back(finite ? 0.0 : 1.0);
  }
  const std::vector<double> all = dist::all_gather_scalars(strategy_.communicator(), mine);
  double sum = 0;
  std::set<int> not_finite;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    double of_ranks = 0;
    for (std::size_t at = 2 * m; at < all.size(); at += mine.size()) {
      of_ranks += all[at];
      if (all[at + 1] == 0.0) continue;
      const auto rank = static_cast<int>(at / mine.size());
      not_finite.insert(strategy_.communicator().world_rank(rank));
    }
    sum += of_ranks;
  }
  if (not_finite.empty()) return sum / all_terms;
  throw Error(loss_not_finite(number(), ranks_text({not_finite.begin(), not_finite.end()})));
}

bool Step::end(const Calls& calls) {
  try {
    calls.verify();
    const bool updated = update();
    memory::mark("sync");
    if (updated) calls.sync();
    ++(updated ? updates_ : skipped_);
    return updated;
  } catch (...) {
    // All ranks have found the same. If a peer is lost, report that error and not the next one.
    try {
      calls.drop();
    } catch (const std::exception&) {
    }
    throw;
  }
}

bool Step::update() {
  RECORD_USER_SCOPE("optimizer");
  const bool clips = options_.clip_norm > 0;
  const double limit = clips ? options_.clip_norm : std::numeric_limits<double>::infinity();
  const bool measures = clips || measures_norm_;
  const float norm = measures ? strategy_.clip_grad_norm(limit) : 0;
  // A finite norm means finite gradients: nothing more has to be read.
  const bool well = measures && std::isfinite(norm);
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

double Step::settings_digest() const {
  return base::fnv1a_as_double(settings_text(strategy_.optimizer()) + strategy_.writes().text());
}

void Step::verify_settings(const std::vector<double>& digests) {
  const ParameterWrites writes = strategy_.writes();
  const dist::Mesh& mesh = strategy_.mesh();
  const std::string settings = settings_text(strategy_.optimizer());
  if (!any_wrong(mesh, !writes.refused().empty(), digests, base::fnv1a_as_double(settings))) {
    strategy_.forget_writes();
    return;
  }
  mesh.verify_same_in_stage("the optimizer's settings", settings);
  std::string problem = writes.refused();
  try {  // tensor ranks write other values into their parts
    dist::verify_same(strategy_.communicator(),
                      "what the program has written into parameters since the last step",
                      writes.text());
  } catch (const Error& error) {
    problem = message_of(error);
  }
  for (const std::string& of_rank : mesh.world().exchange(problem)) {
    if (!of_rank.empty()) throw Error(of_rank);
  }
}

}  // namespace zero::train

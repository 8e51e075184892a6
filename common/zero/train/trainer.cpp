#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>

#include <zero/base/error.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/train/trainer.hpp>

namespace zero::train {
namespace {

using Clock = std::chrono::steady_clock;

// Splits the time of a step: what the communicator waited is taken out of the phase it happened in.
class Stopwatch {
 public:
  Stopwatch(const dist::Communicator& communicator, PhaseSeconds& seconds)
      : communicator_(communicator),
        seconds_(seconds),
        waited_(communicator.exposed_seconds()),
        in_flight_(communicator.in_flight_seconds()) {}
  void end_of(double PhaseSeconds::*phase) {
    const auto now = Clock::now();
    const double all = std::chrono::duration<double>(now - last_).count();
    const double waited = communicator_.exposed_seconds() - waited_;
    seconds_.*phase += all - waited;
    seconds_.communication += waited;
    seconds_.total += all;
    seconds_.in_flight = communicator_.in_flight_seconds() - in_flight_;
    last_ = now;
    waited_ += waited;
  }

 private:
  const dist::Communicator& communicator_;
  PhaseSeconds& seconds_;
  Clock::time_point last_ = Clock::now();
  double waited_;
  double in_flight_;
};

}  // namespace

Trainer::Trainer(Strategy& strategy, TrainerOptions options)
    : strategy_(strategy), options_(options), steps_(options.first_step) {
  if (options.loss_scale) loss_scale_.emplace(*options.loss_scale);
  strategy.communicator().verify_same_on_all_ranks(
      "the trainer's options",
      fmt::format("a clip norm of {} ({})\nfirst step {}\n{}", options.clip_norm,
                  optim::name(options.norm), options.first_step,
                  loss_scale_ ? loss_scale_->describe() : "no loss scale"));
  strategy.set_gradient_scale(loss_scale_ ? loss_scale_->value() : 1.0);
}

StepResult Trainer::step(const std::vector<data::Batch>& micro_batches) {
  dist::Communicator& communicator = strategy_.communicator();
  communicator.set_step(steps_);
  StepResult result;
  Stopwatch watch(communicator, result.seconds);
  strategy_.zero_grad();
  if (loss_scale_) {
    result.loss_scale = loss_scale_->value();
    strategy_.set_gradient_scale(result.loss_scale);
  }
  double loss_sum = 0;
  // The first thing: ranks that find out later that they differ wait for each other.
  const double all_terms = count_terms(micro_batches);
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    const data::Batch& batch = micro_batches[m];
    memory::mark("forward");
    at::Tensor loss;
    {
      RECORD_USER_SCOPE("forward");
      loss = strategy_.forward(batch);
    }
    communicator.synchronize();
    const LossOfAllRanks all = loss_of_all_ranks(loss.item<double>(), batch.loss_terms);
    loss_sum += all.loss_sum;
    watch.end_of(&PhaseSeconds::forward);
    memory::mark("backward");
    // Ranks average with equal weights; a batch with more loss terms than the others must count for
    // more. With one micro-batch and equal numbers of terms the weight is exactly 1.
    const double weight =
        result.loss_scale * static_cast<double>(batch.loss_terms) * communicator.size() / all_terms;
    {
      RECORD_USER_SCOPE("backward");
      strategy_.set_requires_gradient_sync(m + 1 == micro_batches.size());
      strategy_.backward(weight == 1.0 ? loss : loss * weight);
      loss = at::Tensor();
    }
    strategy_.finish_backward();
    watch.end_of(&PhaseSeconds::backward);
  }
  memory::mark("optimizer");
  {
    RECORD_USER_SCOPE("optimizer");
    update(result);
  }
  memory::mark("sync");
  if (!result.skipped) strategy_.sync_parameters();
  watch.end_of(&PhaseSeconds::optimizer);
  result.loss = loss_sum / all_terms;
  ++steps_;
  return result;
}

void Trainer::update(StepResult& result) {
  result.skipped = loss_scale_ && leave_out_step(strategy_, *loss_scale_, steps_);
  if (result.skipped) return;
  if (options_.clip_norm > 0) {
    result.gradient_norm = strategy_.clip_grad_norm(options_.clip_norm, options_.norm);
  }
  strategy_.optimizer_step();
  if (loss_scale_) loss_scale_->note_good_step();
}

bool leave_out_step(Strategy& strategy, LossScale& scale, std::int64_t step) {
  // Every rank looks at its own pieces only; what one of them finds, all must act on.
  const std::vector<int> ranks = strategy.ranks_with_overflow();
  if (ranks.empty()) return false;
  if (scale.note_overflow()) return true;
  throw Error(
      fmt::format("step {}: gradients are infinite or NaN on rank{} {} at a loss scale of 1; no "
                  "rank updates its weights (a lower learning rate or clipping may help, or "
                  "bfloat16, whose range is that of float32)",
                  step, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", ")));
}

double Trainer::evaluate(const std::vector<data::Batch>& batches) {
  const c10::NoGradGuard no_grad;
  const double all_terms = count_terms(batches);
  double loss_sum = 0;
  for (const data::Batch& batch : batches) {
    const at::Tensor loss = strategy_.forward(batch);
    strategy_.communicator().synchronize();
    loss_sum += loss_of_all_ranks(loss.item<double>(), batch.loss_terms).loss_sum;
  }
  return loss_sum / all_terms;
}

double Trainer::count_terms(const std::vector<data::Batch>& batches) const {
  // Every rank sees the same numbers, and so comes to the same decision.
  dist::Communicator& communicator = strategy_.communicator();
  double mine = 0;
  for (const data::Batch& batch : batches) mine += static_cast<double>(batch.loss_terms);
  const std::vector<double> all =
      dist::all_gather_scalars(communicator, {mine, static_cast<double>(batches.size())});
  double terms = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    terms += all[static_cast<std::size_t>(2 * rank)];
    const double theirs = all[static_cast<std::size_t>(2 * rank + 1)];
    if (theirs > 0 && theirs == all[1]) continue;
    throw Error(fmt::format(
        "step {}: rank {} has {} micro-batches{}; every rank needs at least one, and as "
        "many as the others (a batch may be empty)",
        steps_, rank, theirs, theirs == all[1] ? "" : fmt::format(", rank 0 has {}", all[1])));
  }
  if (terms > 0.0) return terms;
  throw Error(
      fmt::format("step {}: no rank has a loss term (all batches are empty or all targets are "
                  "ignored)",
                  steps_));
}

Trainer::LossOfAllRanks Trainer::loss_of_all_ranks(double loss, std::int64_t terms) {
  // A flag for each rank beside its numbers: a maximum over the values would lose a NaN or not,
  // depending on which rank has it.
  dist::Communicator& communicator = strategy_.communicator();
  const bool finite = std::isfinite(loss);
  const std::vector<double> all =
      dist::all_gather_scalars(communicator, {finite ? loss * static_cast<double>(terms) : 0.0,
                                              static_cast<double>(terms), finite ? 0.0 : 1.0});
  LossOfAllRanks sums{0, 0};
  std::vector<int> not_finite;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const double* const theirs = &all[static_cast<std::size_t>(3 * rank)];
    sums.loss_sum += theirs[0];
    sums.terms += theirs[1];
    if (theirs[2] != 0.0) not_finite.push_back(rank);
  }
  if (!not_finite.empty()) {
    throw Error(
        fmt::format("step {}: the loss is NaN or infinite on rank{} {}; no rank updates its "
                    "weights (a lower learning rate or clipping may help)",
                    steps_, not_finite.size() == 1 ? "" : "s", fmt::join(not_finite, ", ")));
  }
  return sums;
}

}  // namespace zero::train

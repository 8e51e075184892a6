#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include <zero/base/error.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/train/trainer.hpp>

namespace zero::train {
namespace {

using Clock = std::chrono::steady_clock;

// Splits the time of a step: time that communicators waited is taken out of its phase.
class Stopwatch {
 public:
  Stopwatch(const dist::Communicator& world, PhaseSeconds& seconds)
      : world_(world),
        seconds_(seconds),
        waited_(world.exposed_seconds()),
        in_flight_(world.in_flight_seconds()) {}
  void end_of(double PhaseSeconds::*phase) {
    const auto now = Clock::now();
    const double all = std::chrono::duration<double>(now - last_).count();
    const double waited = world_.exposed_seconds() - waited_;
    seconds_.*phase += all - waited;
    seconds_.communication += waited;
    seconds_.total += all;
    seconds_.in_flight = world_.in_flight_seconds() - in_flight_;
    last_ = now;
    waited_ += waited;
  }

 private:
  const dist::Communicator& world_;  // the waits of all axes
  PhaseSeconds& seconds_;
  Clock::time_point last_ = Clock::now();
  double waited_;
  double in_flight_;
};

}  // namespace

Trainer::Trainer(Strategy& strategy, TrainerOptions options)
    : strategy_(strategy), options_(options), steps_(options.first_step) {
  const dist::CallScope call(strategy.mesh().world(), "Trainer::Trainer");
  if (options.loss_scale) loss_scale_.emplace(*options.loss_scale);
  strategy.mesh().world().verify_same_on_all_ranks("the trainer's options", options_text());
  strategy.averaged_gradients().set_loss_scale(loss_scale_ ? loss_scale_->value() : 1.0);
}

std::string Trainer::options_text() const {
  return fmt::format("a clip norm of {} ({})\nfirst step {}\n{}\n{} where a gradient is not finite",
                     options_.clip_norm, optim::name(options_.norm), options_.first_step,
                     loss_scale_ ? loss_scale_->describe() : "no loss scale",
                     name(options_.on_nonfinite_gradient));
}

StepResult Trainer::step(const std::vector<data::Batch>& micro_batches) {
  const dist::CallScope call(strategy_.mesh().world(), "Trainer::step");
  strategy_.mesh().world().set_step(steps_);
  StepResult result;
  strategy_.zero_grad();
  if (loss_scale_) {
    result.loss_scale = loss_scale_->value();
    strategy_.averaged_gradients().set_loss_scale(result.loss_scale);
  }
  run(micro_batches, result);
  ++steps_;
  if (result.skipped) ++skipped_steps_;
  return result;
}

void Trainer::run(const std::vector<data::Batch>& micro_batches, StepResult& result) {
  Stopwatch watch(strategy_.mesh().world(), result.seconds);
  // First: ranks that found out later that they differ would wait for each other.
  const double all_terms = count_terms(micro_batches);
  const double loss_sum =
      run_micro_batches(micro_batches, all_terms, result.loss_scale,
                        [&watch](double PhaseSeconds::*phase) { watch.end_of(phase); });
  memory::mark("optimizer");
  {
    RECORD_USER_SCOPE("optimizer");
    end(result);
  }
  memory::mark("sync");
  if (!result.skipped) sync_parameters();
  watch.end_of(&PhaseSeconds::optimizer);
  result.loss = loss_sum / all_terms;
}

double Trainer::run_micro_batches(const std::vector<data::Batch>& micro_batches, double all_terms,
                                  double loss_scale, const EndOfPhase& end_of) {
  dist::Communicator& communicator = strategy_.communicator();
  double loss_sum = 0;
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    const data::Batch& batch = micro_batches[m];
    memory::mark("forward");
    at::Tensor loss;
    {
      RECORD_USER_SCOPE("forward");
      loss = strategy_.forward(batch);
    }
    communicator.synchronize();
    loss_sum += loss_of_all_ranks(loss.item<double>(), batch.loss_terms);
    end_of(&PhaseSeconds::forward);
    memory::mark("backward");
    {
      RECORD_USER_SCOPE("backward");
      strategy_.set_requires_gradient_sync(m + 1 == micro_batches.size());
      strategy_.backward(weighted_loss(loss, {static_cast<double>(batch.loss_terms), all_terms,
                                              communicator.size(), loss_scale}));
      loss = at::Tensor();
    }
    strategy_.finish_backward();
    end_of(&PhaseSeconds::backward);
  }
  return loss_sum;
}

void Trainer::end(StepResult& result) {
  const UpdateOptions options{options_.clip_norm, options_.norm, options_.on_nonfinite_gradient};
  try {
    const UpdateResult made =
        update(strategy_, options, loss_scale_ ? &*loss_scale_ : nullptr, steps_);
    result.skipped = made.skipped;
    result.gradient_norm = made.gradient_norm;
  } catch (const Error&) {
    strategy_.zero_grad();  // all ranks have found the same
    throw;
  }
}

double Trainer::evaluate(const std::vector<data::Batch>& batches) {
  const dist::CallScope call(strategy_.mesh().world(), "Trainer::evaluate");
  const c10::NoGradGuard no_grad;
  const double all_terms = count_terms(batches);
  double loss_sum = 0;
  for (const data::Batch& batch : batches) {
    const at::Tensor loss = strategy_.forward(batch);
    strategy_.communicator().synchronize();
    loss_sum += loss_of_all_ranks(loss.item<double>(), batch.loss_terms);
  }
  return loss_sum / all_terms;
}

double Trainer::count_terms(const std::vector<data::Batch>& batches) {
  // Every rank sees the same numbers, so all decide alike.
  dist::Communicator& communicator = strategy_.communicator();
  double mine = 0;
  for (const data::Batch& batch : batches) mine += static_cast<double>(batch.loss_terms);
  const std::vector<double> all = dist::all_gather_scalars(
      communicator, {mine, static_cast<double>(batches.size()), settings_digest(strategy_)});
  double terms = 0;
  std::vector<double> settings;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const double* const of_rank = &all[static_cast<std::size_t>(3 * rank)];
    terms += of_rank[0];
    settings.push_back(of_rank[2]);
    const double theirs = of_rank[1];
    if (theirs > 0 && theirs == all[1]) continue;
    throw Error(fmt::format(
        "step {}: rank {} has {} micro-batches{}; every rank needs at least one, and as "
        "many as the others (a batch may be empty)",
        steps_, rank, theirs, theirs == all[1] ? "" : fmt::format(", rank 0 has {}", all[1])));
  }
  verify_settings(strategy_, settings);
  if (terms > 0.0) return terms;
  throw Error(
      fmt::format("step {}: no rank has a loss term (all batches are empty or all targets are "
                  "ignored)",
                  steps_));
}

double Trainer::loss_of_all_ranks(double loss, std::int64_t terms) {
  // Each rank sends a flag with its numbers: a maximum over the values could lose a NaN, depending
  // on which rank has it.
  dist::Communicator& communicator = strategy_.communicator();
  const bool finite = std::isfinite(loss);
  const std::vector<double> all = dist::all_gather_scalars(
      communicator, {finite ? loss * static_cast<double>(terms) : 0.0, finite ? 0.0 : 1.0});
  double sum = 0;
  std::vector<int> not_finite;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const double* const theirs = &all[static_cast<std::size_t>(2 * rank)];
    sum += theirs[0];
    if (theirs[1] != 0.0) not_finite.push_back(rank);
  }
  if (!not_finite.empty()) {
    strategy_.zero_grad();
    throw Error(
        fmt::format("step {}: the loss is NaN or infinite on {}; no rank updates its weights (a "
                    "lower learning rate or clipping may help)",
                    steps_, ranks_text(not_finite)));
  }
  return sum;
}

}  // namespace zero::train

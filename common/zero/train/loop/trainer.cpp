#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/train/loop/trainer.hpp>

namespace zero::train {
namespace {

using Clock = std::chrono::steady_clock;

// Splits the time of a step: time that communicators waited is taken out of its phase.
class Stopwatch {
 public:
  Stopwatch(const dist::Communicator& world, PhaseSeconds& seconds)
      : world_(world),
        seconds_(seconds),
        waited_(world.times().exposed_seconds()),
        in_flight_(world.times().in_flight_seconds()) {}
  void end_of(double PhaseSeconds::*phase) {
    const auto now = Clock::now();
    const double all = std::chrono::duration<double>(now - last_).count();
    const double waited = world_.times().exposed_seconds() - waited_;
    seconds_.*phase += all - waited;
    seconds_.communication += waited;
    seconds_.total += all;
    seconds_.in_flight = world_.times().in_flight_seconds() - in_flight_;
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

Trainer::Trainer(Strategy& strategy, const StepOptions& options)
    : strategy_(strategy), step_(strategy, options, "Trainer::Trainer") {}

StepResult Trainer::step(const std::vector<data::Batch>& micro_batches) {
  dist::Communicator& world = strategy_.mesh().world();
  const dist::CallScope call(world, "Trainer::step");
  world.set_step(steps());
  StepResult result;
  result.loss_scale = step_.scale();
  strategy_.zero_grad();
  Stopwatch watch(world, result.seconds);
  // First: ranks that found out later that they differ would wait for each other.
  const double all_terms = count_terms(micro_batches);
  const std::vector<double> losses = run_micro_batches(
      micro_batches, all_terms, [&watch](double PhaseSeconds::*phase) { watch.end_of(phase); });
  memory::mark("optimizer");
  const bool updated =
      step_.end({.verify = [&] { result.loss = mean_loss(losses, micro_batches, all_terms); },
                 .sync = [this] { sync_parameters(); },
                 .drop = [this] { strategy_.zero_grad(); }});
  watch.end_of(&PhaseSeconds::optimizer);
  result.skipped = !updated;
  if (updated) result.gradient_norm = step_.gradient_norm();
  return result;
}

std::vector<double> Trainer::run_micro_batches(const std::vector<data::Batch>& micro_batches,
                                               double all_terms, const EndOfPhase& end_of) {
  std::vector<at::Tensor> losses;
  for (const data::Batch& batch : micro_batches) {
    memory::mark("forward");
    at::Tensor loss = forward(batch);
    losses.push_back(loss.detach());
    loss = step_.weighted(loss, static_cast<double>(batch.loss_terms), all_terms);
    end_of(&PhaseSeconds::forward);
    memory::mark("backward");
    RECORD_USER_SCOPE("backward");
    step_.backward(std::move(loss), losses.size() == micro_batches.size());
    end_of(&PhaseSeconds::backward);
  }
  return strategy_.averaged_gradients().read(losses);
}

double Trainer::evaluate(const std::vector<data::Batch>& batches) {
  const dist::CallScope call(strategy_.mesh().world(), "Trainer::evaluate");
  const c10::NoGradGuard no_grad;
  const double all_terms = count_terms(batches);
  return mean_loss(run_forward(batches), batches, all_terms);
}

std::vector<double> Trainer::run_forward(const std::vector<data::Batch>& batches) {
  std::vector<at::Tensor> losses;
  for (const data::Batch& batch : batches) losses.push_back(forward(batch));
  return strategy_.averaged_gradients().read(losses, /*with_norms=*/false);
}

at::Tensor Trainer::forward(const data::Batch& batch) {
  RECORD_USER_SCOPE("forward");
  return strategy_.forward(batch);
}

double Trainer::count_terms(const std::vector<data::Batch>& batches) {
  // Every rank sees the same numbers, so all decide alike.
  dist::Communicator& communicator = strategy_.communicator();
  double mine = 0;
  for (const data::Batch& batch : batches) mine += static_cast<double>(batch.loss_terms);
  const std::vector<double> all = dist::all_gather_scalars(
      communicator, {mine, static_cast<double>(batches.size()), step_.settings_digest()});
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
        steps(), communicator.world_rank(rank), theirs,
        theirs == all[1] ? ""
                         : fmt::format(", rank {} has {}", communicator.world_rank(0), all[1])));
  }
  step_.verify_settings(settings);
  if (terms > 0.0) return terms;
  throw Error(
      fmt::format("step {}: no rank has a loss term (all batches are empty or all targets are "
                  "ignored)",
                  steps()));
}

double Trainer::mean_loss(const std::vector<double>& losses,
                          const std::vector<data::Batch>& batches, double all_terms) {
  std::vector<double> terms;
  for (const data::Batch& batch : batches) terms.push_back(static_cast<double>(batch.loss_terms));
  return step_.mean_loss(losses, terms, all_terms);
}

}  // namespace zero::train

#include "trainer.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include <tools/plots/memory_timeline.hpp>
#include <zero/base/error.hpp>
#include <zero/base/kept_error.hpp>

namespace zero::tools {
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

Trainer::Trainer(train::Strategy& strategy, Loss loss, const train::StepOptions& options)
    : strategy_(strategy), loss_(std::move(loss)), step_(strategy, options, "Trainer::Trainer") {}

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
  plots::mark("optimizer");
  bool updated = false;
  base::KeptError problem;
  problem.keep([&] {
    updated = step_.end(of_step(losses, micro_batches, all_terms));
    plots::mark("sync");
    if (updated) sync_parameters();
  });
  // All ranks have found the same. If a peer is lost, this error is said and not the next one.
  if (problem.is_there()) problem.keep([this] { strategy_.zero_grad(); });
  problem.rethrow();
  result.loss = step_.loss();
  watch.end_of(&PhaseSeconds::optimizer);
  result.skipped = !updated;
  if (updated) result.gradient_norm = step_.gradient_norm();
  return result;
}

std::vector<double> Trainer::run_micro_batches(const std::vector<data::Batch>& micro_batches,
                                               double all_terms, const EndOfPhase& end_of) {
  std::vector<at::Tensor> losses;
  for (const data::Batch& batch : micro_batches) {
    plots::mark("forward");
    at::Tensor loss = forward(batch);
    losses.push_back(loss.detach());
    loss = step_.weighted(loss, static_cast<double>(batch.loss_terms), all_terms);
    end_of(&PhaseSeconds::forward);
    plots::mark("backward");
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
  return step_.mean_loss(of_step(run_forward(batches), batches, all_terms));
}

std::vector<double> Trainer::run_forward(const std::vector<data::Batch>& batches) {
  std::vector<at::Tensor> losses;
  for (const data::Batch& batch : batches) losses.push_back(forward(batch));
  return strategy_.averaged_gradients().read(losses, /*with_norms=*/false);
}

at::Tensor Trainer::forward(const data::Batch& batch) {
  RECORD_USER_SCOPE("forward");
  return strategy_.forward([&] { return loss_(batch); }, batch.loss_terms);
}

train::Step::Losses Trainer::of_step(std::vector<double> losses,
                                     const std::vector<data::Batch>& batches, double all_terms) {
  train::Step::Losses all{.values = std::move(losses), .terms = {}, .all_terms = all_terms};
  for (const data::Batch& batch : batches) {
    all.terms.push_back(static_cast<double>(batch.loss_terms));
  }
  return all;
}

// The loss terms of all ranks. Every rank sees the same numbers, so all decide alike.
double Trainer::count_terms(const std::vector<data::Batch>& batches) {
  const dist::Mesh& mesh = strategy_.mesh();
  const bool shared = mesh.data().size() < mesh.world().size();  // by ranks of other axes
  std::int64_t mine = 0;
  std::uint64_t digest = 0;
  for (const data::Batch& batch : batches) {
    mine += batch.loss_terms;
    if (shared) digest = data::digest(batch, digest);
  }
  dist::Statement said{
      .topics = {{fmt::format("the micro-batches of step {}, which the stages of a pipeline and "
                              "the ranks of a tensor axis share",
                              steps()),
                  fmt::format("{} with {} loss terms (digest {:x})", batches.size(), mine, digest),
                  {"data"}}},
      .numbers = {static_cast<double>(batches.size()), static_cast<double>(mine)}};
  try {
    for (const data::Batch& batch : batches) check_batch(batch);
  } catch (const std::exception& error) {
    said.problem = message_of(error);
  }
  const std::vector<std::vector<double>> all = dist::exchange(mesh, said);
  const double count = all.front()[0];
  double terms = 0;
  for (int rank = 0; rank < mesh.world().size(); ++rank) {
    const std::vector<double>& theirs = all[static_cast<std::size_t>(rank)];
    if (mesh.shares(rank, {"pipeline", "tensor"})) terms += theirs[1];
    if (theirs[0] > 0 && theirs[0] == count) continue;
    throw Error(fmt::format(
        "step {}: rank {} has {} micro-batches{}; every rank needs at least one, and as "
        "many as the others (a batch may be empty)",
        steps(), mesh.world().world_rank(rank), theirs[0],
        theirs[0] == count ? ""
                           : fmt::format(", rank {} has {}", mesh.world().world_rank(0), count)));
  }
  if (terms > 0.0) return terms;
  throw Error(
      fmt::format("step {}: no rank has a loss term (all batches are empty or all targets are "
                  "ignored)",
                  steps()));
}

}  // namespace zero::tools

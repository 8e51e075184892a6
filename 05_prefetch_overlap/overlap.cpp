#include "overlap.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>

namespace zero {

namespace {

// The first passes touch their memory for the first time; the least of each time counts.
constexpr std::int64_t kTimedPasses = 3;

const OverlapOptions& checked(const OverlapOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

Overlap::Overlap(const train::StrategyArguments& arguments, const OverlapOptions& options,
                 dist::Communicator& shards, dist::Communicator* replicas)
    : Strategy(arguments),
      options_(checked(options)),
      reduction_(replicas == nullptr ? dist::ReduceOp::kAverage : dist::ReduceOp::kSum,
                 arguments.reduce_type),
      reduce_each_(arguments.accumulation == train::Accumulation::kReduceEach),
      pool_(options.keep_buffers),
      flat_(
          list(), options_.bucket_bytes, [this](std::size_t u) { return flat_options(u); }, shards,
          pool_),
      in_flight_(options.in_flight_bytes,
                 [this](const train::ReducedShard& shard) { shard_reduced(shard); }),
      forward_(std::max<std::int64_t>(options.lookahead, 0)),
      backward_(std::max<std::int64_t>(options.lookahead, 0)),
      timed_passes_left_(options.stage == 3 && options.lookahead == kAutoLookahead ? kTimedPasses
                                                                                   : 0) {
  communicator_.verify_same_on_all_ranks(
      "the engine's options",
      fmt::format("stage {}\nbuckets of {} bytes, {} in flight\nlookahead {}\n"
                  "units below {} elements whole, {} bytes ahead at most\n{}",
                  options.stage, options.bucket_bytes, options.in_flight_bytes, options.lookahead,
                  options.whole_below, options.ahead_bytes,
                  options.defer_parameter_gather ? "updated parameters gathered in forward"
                                                 : "updated parameters gathered in the step"));
  flat_.initialize([this](std::size_t index, at::Tensor out) { first_value(index, out); },
                   replicas);
  broadcast_buffers_from_rank_0();
  if (options_.stage > 0) shard_optimizer();
  train::BackwardSchedule::Actions actions;
  actions.reduce = [this](std::size_t b) { start_reduce(b); };
  // Below stage 3 nothing is gathered in backward.
  if (options_.stage == 3) actions.reshard = [this](std::size_t u) { reshard_unit(u); };
  reduce_in_backward(flat_.items(), std::move(actions));
}

train::FlatOptions Overlap::flat_options(std::size_t unit) const {
  train::FlatOptions options;
  options.sharded = static_cast<train::Sharded>(options_.stage);
  if (options_.stage == 3) {
    std::int64_t elements = 0;
    for (const std::size_t i : list().units[unit].parameters) elements += parameter(i).numel();
    if (elements < options_.whole_below) options.sharded = train::Sharded::kGradients;
  }
  options.average = reduction_;
  options.adds_averages = reduce_each_;
  // The root's shards come last in backward, when most memory is in use.
  options.keeps_gradients =
      options_.keep_gradients && !reduce_each_ && (unit != 0 || options_.stage < 2);
  return options;
}

std::int64_t Overlap::gathers(std::size_t unit) const {
  // The root stays whole between its forward and its backward. Other units are gathered for each
  // use in forward, and once for backward, until all their gradients are complete.
  const std::int64_t once = uses(unit) > 0 ? 1 : 0;
  return unit == 0 ? once : uses(unit) + once;
}

train::Costs Overlap::costs() const {
  return {{flat_.parameter_bytes(), flat_.gradient_bytes(), train::CostSums(*this).optimizer},
          flat_.sent_bytes([this](std::size_t unit) { return gathers(unit); })};
}

at::Tensor Overlap::forward(const data::Batch& batch) {
  const bool trains = c10::GradMode::is_enabled();
  forward_.begin();
  forward_clock_.begin();
  at::Tensor loss = Strategy::forward(batch);
  if (trains) {
    if (timed_passes_left_ > 0) forward_clock_.end();
    end_of_pass(forward_, "forward");
  } else {
    // No backward will use what was gathered, prefetched or kept for reuse.
    reshard_all();
    pool_.clear();
  }
  return loss;
}

void Overlap::begin_backward() {
  backward_.begin();
  backward_clock_.begin();
}

void Overlap::end_backward() {
  if (timed_passes_left_ > 0) backward_clock_.end();
}

void Overlap::end_of_pass(Prefetch& pass, const char* name) {
  if (options_.stage < 3) return;  // nothing to gather: ranks may run different units
  const bool differed = pass.lost();
  if (pass.keep()) {
    // A rank that gathers in another order would wait for what the others never send.
    communicator_.verify_same_on_all_ranks(fmt::format("the order of units in {}", name),
                                           fmt::format("{}", fmt::join(pass.order(), " ")));
  }
  if (!differed) return;
  if (lost_passes_++ == 0 && communicator_.rank() == 0) {
    log_error(
        fmt::format("note: units ran in another order in {} than the time before; such a pass "
                    "gathers each when it is needed, without prefetch",
                    name));
  }
}

std::int64_t Overlap::largest_unit_ahead() const {
  std::int64_t largest = 1;
  for (std::size_t u = 1; u < list().units.size(); ++u) {  // the root is never gathered ahead
    std::int64_t bytes = 0;
    for (const std::size_t b : flat_.of_unit(u)) {
      if (flat_[b].sharded() == train::Sharded::kParameters) bytes += flat_[b].full_bytes();
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

void Overlap::choose_lookahead_once() {
  // Use the same numbers on every rank, or ranks would gather differently.
  const std::vector<UnitTimes> times = least_over_ranks(
      {forward_clock_.least(), backward_clock_.least()},
      [this](auto mine) { return dist::all_gather_scalars(communicator_, std::move(mine)); });
  const LookaheadChoice choice =
      choose_lookahead(times, options_.ahead_bytes / largest_unit_ahead());
  forward_.set_lookahead(choice.units);
  backward_.set_lookahead(choice.units);
  if (communicator_.rank() == 0) {
    log_error(fmt::format("note: lookahead {}: {}", choice.units, choice.why));
  }
}

void Overlap::use(std::size_t unit, Prefetch& pass, PassClock& clock) {
  if (timed_passes_left_ > 0) clock.asks();
  start_gather(unit);
  // Start them before waiting for this unit: they arrive while it is waited for and while it runs.
  for (const std::size_t next : pass.use(unit)) start_gather(next);
  finish_gather(unit);
  if (timed_passes_left_ > 0) clock.runs();
}

void Overlap::pre_forward(std::size_t unit) {
  if (!in_backward()) return use(unit, forward_, forward_clock_);
  // A checkpoint that runs again is not part of the order of forward.
  start_gather(unit);
  finish_gather(unit);
}

void Overlap::post_forward(std::size_t unit) {
  // The root runs last in forward and first in backward: it stays whole if a backward follows.
  if (unit != 0 || !c10::GradMode::is_enabled()) reshard_unit(unit);
}

void Overlap::pre_backward(std::size_t unit) {
  use(unit, backward_, backward_clock_);
  // The last unit needs few buffers, and the shard of the root's gradient is still to come.
  if (backward_.at_end()) pool_.clear();
}

void Overlap::start_gather(std::size_t unit) {
  RECORD_USER_SCOPE("engine_param_gather");
  flat_.start_gather(unit);
}

void Overlap::finish_gather(std::size_t unit) {
  RECORD_USER_SCOPE("engine_param_wait");
  flat_.finish_gather(unit);
}

void Overlap::reshard_unit(std::size_t unit) {
  if (!is_in_use(unit)) flat_.reshard(unit);
}

void Overlap::gather(std::size_t unit) {
  flat_.wait_gathers();
  start_gather(unit);
  finish_gather(unit);
}

void Overlap::drop(std::size_t unit) {
  reshard_unit(unit);
  pool_.clear();
}

void Overlap::gradient_ready(std::size_t index) {
  // Copies it into the flat gradient buffer, unless a layer of zero/nn has written it there.
  flat_.collect(index);
  // A good moment to receive what peers have sent: no matrix product is running.
  communicator_.progress();
}

void Overlap::start_reduce(std::size_t bucket) {
  RECORD_USER_SCOPE("engine_grad_reduce");
  note_used(flat_[bucket].members());
  in_flight_.start(flat_[bucket]);
}

void Overlap::finish_backward() {
  if (reduces_now()) finish_reductions();
  Strategy::finish_backward();
  // Not inside backward: there, ranks may have reduced different buckets at this point.
  end_of_pass(backward_, "backward");
  if (timed_passes_left_ > 0 && --timed_passes_left_ == 0) choose_lookahead_once();
  // No next unit will use what was kept for it.
  pool_.clear();
}

void Overlap::sync_parameters() {
  RECORD_USER_SCOPE("engine_param_gather");
  // Start all before waiting for the first, in the order in which forward needs them.
  flat_.start_refresh();
  if (!options_.defer_parameter_gather) flat_.wait_gathers();
}

void Overlap::zero_grad() {
  finish_reductions();
  flat_.drop_gradients();
  Strategy::zero_grad();
}

train::ParameterShard Overlap::local_shard(std::size_t index) const {
  // The caller may write into it, and a gather in flight would overwrite that.
  flat_.wait_gathers();
  return flat_.local_shard(index);
}

}  // namespace zero

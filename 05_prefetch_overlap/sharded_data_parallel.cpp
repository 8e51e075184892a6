#include "sharded_data_parallel.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/base/kept_error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/train/cost_sums.hpp>

namespace zero {

namespace {

// The first passes touch their memory for the first time; the least of each time counts.
constexpr std::int64_t kTimedPasses = 3;

// Whether the tensor axis adds up gradients of this bucket after its reduction. They share a
// version counter with all others of the bucket.
bool is_summed_later(const nn::ParameterList& list, const train::FlatParameters& bucket) {
  return std::ranges::any_of(
      bucket.members(), [&](std::size_t i) { return list.parameters[i].placement.sums_gradient; });
}

}  // namespace

ShardedDataParallel::ShardedDataParallel(const train::StrategyArguments& arguments,
                                         const ShardingOptions& options, train::Transfers transfers)
    : Strategy(arguments),
      options_(options),
      transfers_(std::move(transfers)),
      shards_(transfers_.shards == nullptr ? communicator_ : *transfers_.shards),
      pool_(options.keep_buffers),
      flat_(
          list(), options.bucket_bytes, [this](std::size_t u) { return flat_options(u); }, shards_,
          pool_),
      in_flight_(options.in_flight_bytes,
                 [this](const train::FlatParameters& bucket) { reduced(bucket); }),
      forward_(std::max<std::int64_t>(options.lookahead, 0)),
      backward_(std::max<std::int64_t>(options.lookahead, 0)),
      timed_passes_left_(options.stage == 3 && options.lookahead == kAutoLookahead ? kTimedPasses
                                                                                   : 0) {
  flat_.initialize([this](std::size_t index, at::Tensor out) { first_values().write(index, out); });
  first_values().broadcast_buffers();
  shard_optimizer(flat_.placements(options_.stage > 0 ? &shards_ : nullptr));
  const train::Units below =
      options_.defer_parameter_gather ? train::Units::kAwaited : train::Units::kWhole;
  reduce_in_backward(
      flat_.items(), [this](std::size_t b) { reduce(b); },
      options_.stage == 3 ? train::Units::kGathered : below);
  passes().set_order({.last = [this] { return forward_order_; },
                      .compared = [this](bool same) { ranks_compared(same); }});
}

train::FlatOptions ShardedDataParallel::flat_options(std::size_t unit) {
  train::FlatOptions options;
  options.sharded = static_cast<train::Sharded>(options_.stage);
  if (options_.stage == 3) {
    std::int64_t elements = 0;
    for (const std::size_t i : list().units[unit].parameters) elements += parameter(i).numel();
    if (elements < options_.whole_below) options.sharded = train::Sharded::kGradients;
  }
  options.average = average_;
  options.transfers = transfers_;
  options.version = [this] { return passes().forwards().version() + disagreements_; };
  options.adds_averages = reduces_each();
  // The root's shards come last in backward, when most memory is in use.
  options.keeps_gradients =
      options_.keep_gradients && !reduces_each() && (unit != kRoot || options_.stage < 2);
  return options;
}

at::Tensor ShardedDataParallel::forward(const std::function<at::Tensor()>& pass,
                                        std::int64_t loss_terms) {
  if (!is_compared_) {
    compare_order(forward_order_, "forward");
    ranks_compared(/*same=*/true);
  }
  forward_.begin();
  forward_clock_.begin();
  at::Tensor loss = Strategy::forward(pass, loss_terms);
  if (c10::GradMode::is_enabled()) {
    forward_clock_.end();
    end_of_forward();
  } else {
    end_of_evaluation();
  }
  return loss;
}

void ShardedDataParallel::backward(const at::Tensor& loss) {
  if (!is_compared_ && forward_.is_new()) verify_order(forward_, "forward");
  ranks_compared(/*same=*/true);
  backward_.begin();
  backward_clock_.begin();
  Strategy::backward(loss);
  backward_clock_.end();
}

void ShardedDataParallel::gather(std::size_t unit, train::Gather why) {
  switch (why) {
    case train::Gather::kForward:
      return use(unit, forward_, forward_clock_);
    case train::Gather::kBackward:
      use(unit, backward_, backward_clock_);
      // The last unit needs few buffers, and the shard of the root's gradient is still to come.
      if (backward_.at_end()) pool_.clear();
      return;
    case train::Gather::kAgain:  // no part of the order of forward
      break;
    case train::Gather::kOther:
      verify_weights();
      flat_.wait_gathers();
      break;
    case train::Gather::kRead:
      flat_.wait_gathers();
      if (!schedule().is_in_use(unit)) flat_.gather_exactly(unit);
      return;
  }
  flat_.start_gather(unit);
  flat_.finish_gather(unit);
}

void ShardedDataParallel::use(std::size_t unit, Prefetch& pass, PassClock& clock) {
  verify_weights();  // for a pass that is not forward()
  clock.asks();
  flat_.start_gather(unit);
  // Start them before waiting for this unit: they arrive while it is waited for and while it runs.
  for (const std::size_t next : pass.use(unit)) flat_.start_gather(next);
  flat_.finish_gather(unit);
  clock.runs();
}

void ShardedDataParallel::drop(std::size_t unit) {
  flat_.reshard(unit);
  // Between passes no next unit will use what was kept for it.
  if (!passes().is_running()) pool_.clear();
}

void ShardedDataParallel::gradient_ready(std::size_t index) {
  // From here on `.grad` is a view of its bucket's flat buffer: see FlatParameters::collect().
  flat_.collect(index);
  // A good moment to receive what peers have sent: no matrix product is running.
  communicator_.progress();
}

void ShardedDataParallel::reduce(std::size_t buffer) {
  RECORD_USER_SCOPE("flat_grad_reduce");
  note_used(flat_[buffer].members());
  in_flight_.start(flat_[buffer]);
}

// The optimizer may have the gradients, unless something is still added to them.
void ShardedDataParallel::reduced(const train::FlatParameters& bucket) {
  if (bucket.averages_at_once() && !reduces_each() && !is_summed_later(list(), bucket)) {
    optimizer().take_gradients(bucket.updated());
  }
}

void ShardedDataParallel::finish_backward() {
  if (reduces_now()) {
    in_flight_.finish();
    flat_.finish_rests();
  }
  Strategy::finish_backward();  // drops the gradients that no rank used; the others stay
  // Here and not at the end of backward: by now all ranks have started the same reductions.
  if (options_.stage == 3 && backward_.is_new()) {
    verify_order(backward_, "backward");
    backward_.keep();
  }
  note_lost(backward_, "backward");
  if (timed_passes_left_ > 0 && --timed_passes_left_ == 0) choose_lookahead_once();
  // No next unit will use what was kept for it.
  pool_.clear();
}

// Ranks compare the order before a backward, with what they tell each other then
// (ranks_compared()), or else by themselves if it is new. Of a forward without a backward they
// compare it before the next forward, all of them: here a rank with a usual order would not hear of
// another one.
void ShardedDataParallel::end_of_forward() {
  if (options_.stage < 3) return;  // nothing to gather: ranks may run different units
  forward_order_ = order_of(forward_);
  is_compared_ = false;
  note_lost(forward_, "forward");
}

void ShardedDataParallel::ranks_compared(bool same) {
  base::KeptError after_another;  // which the caller throws
  if (!same) return after_another.keep([this] { forget_passes(); });
  if (!std::exchange(is_compared_, true) && forward_.is_new()) forward_.keep();
}

void ShardedDataParallel::note_lost(const Prefetch& pass, const char* name) {
  if (options_.stage < 3 || !pass.lost()) return;
  if (lost_passes_++ == 0 && communicator_.rank() == 0) {
    log_error(
        fmt::format("note: units ran in another order in {} than the time before; such a pass "
                    "gathers each when it is needed, without prefetch",
                    name));
  }
}

std::string ShardedDataParallel::order_of(const Prefetch& pass) const {
  std::string order;
  for (const std::size_t u : pass.seen()) {
    const std::string& name = list().units[u].name;
    order += (name.empty() ? "the root" : name) + "\n";
  }
  return order;
}

// An evaluation keeps no order, so ranks compare each one. Nothing is gathered of a unit that stays
// whole: ranks may run such units as they like.
void ShardedDataParallel::end_of_evaluation() {
  if (options_.stage < 3) return;
  std::string gathered;
  for (const std::size_t u : forward_.seen()) {
    if (flat_.shards(u)) gathered += fmt::format("{} ", u);
  }
  compare_order(gathered, "a forward without a graph");
}

// `mine`: of the last forward; texts follow only if their digests differ.
void ShardedDataParallel::compare_order(const std::string& mine, const char* name) {
  if (communicator_.size() == 1) return;
  const std::vector<double> all =
      dist::all_gather_scalars(communicator_, {base::fnv1a_as_double(mine)});
  if (std::ranges::count(all, all.front()) < communicator_.size()) verify_order(forward_, name);
}

void ShardedDataParallel::verify_order(const Prefetch& pass, const char* name) {
  base::KeptError problem;
  problem.keep([&] {
    dist::verify_same(
        communicator_,
        fmt::format("the order of units in {} ({})", name, train::OrderOfUnits::kRule),
        order_of(pass));
  });
  if (!problem.is_there()) return;
  problem.keep([this] { forget_passes(); });
  problem.rethrow();
}

// Ranks that ran units in different orders have taken each other's parameters, if these had as many
// elements: nothing that they have gathered is kept, and the order that was known stays the known
// one.
void ShardedDataParallel::forget_passes() {
  ++disagreements_;
  is_compared_ = true;
  passes().schedule().drop_all();
}

void ShardedDataParallel::choose_lookahead_once() {
  // Use the same numbers on every rank, or ranks would gather differently.
  const std::vector<UnitTimes> times = least_over_ranks(
      {forward_clock_.least(), backward_clock_.least()},
      [this](auto mine) { return dist::all_gather_scalars(communicator_, std::move(mine)); });
  const std::int64_t unit_bytes = std::max<std::int64_t>(flat_.largest_sharded_unit(), 1);
  const LookaheadChoice choice = choose_lookahead(times, options_.ahead_bytes / unit_bytes);
  forward_.set_lookahead(choice.units);
  backward_.set_lookahead(choice.units);
  if (communicator_.rank() == 0) {
    log_error(fmt::format("note: lookahead {}: {}", choice.units, choice.why));
  }
}

void ShardedDataParallel::sync_parameters() {
  // All gathers start before the first wait, so that they overlap.
  flat_.start_refresh();
  if (!options_.defer_parameter_gather) flat_.wait_gathers();
}

void ShardedDataParallel::bring(std::size_t index) {
  // A gather in flight would overwrite what the caller writes.
  flat_.wait_gathers();
  flat_.bring(index);
}

void ShardedDataParallel::zero_grad() {
  Strategy::zero_grad();  // first: after an exception in backward() it reduces what is missing
  in_flight_.finish();
  flat_.drop_gradients();
}

train::Costs ShardedDataParallel::costs() const {
  const auto of_unit = [this](std::size_t unit) { return gathers(unit); };
  const train::SentBytes sent = flat_.sent(of_unit);
  return {{flat_.parameter_bytes(), flat_.gradient_bytes(), train::CostSums(*this).optimizer},
          sent.all,
          flat_.gathered_bytes(of_unit),
          sent.between_groups};
}

}  // namespace zero

#include "sharded_data_parallel.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
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
                 [this](const train::FlatGradients& bucket) { reduced(bucket); }),
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
  options.version = [this] { return passes().forwards().version(); };
  options.adds_averages = reduces_each();
  // The root's shards come last in backward, when most memory is in use.
  options.keeps_gradients =
      options_.keep_gradients && !reduces_each() && (unit != kRoot || options_.stage < 2);
  return options;
}

at::Tensor ShardedDataParallel::forward(const std::function<at::Tensor()>& pass,
                                        std::optional<std::int64_t> loss_terms) {
  forward_.begin();
  forward_clock_.begin();
  at::Tensor loss = Strategy::forward(pass, loss_terms);
  compare_order(forward_, "forward");
  if (c10::GradMode::is_enabled()) {
    forward_clock_.end();
    note_lost(forward_, "forward");
    trained_ = forward_.seen();
  }
  return loss;
}

void ShardedDataParallel::backward(const at::Tensor& loss) {
  // Not at the end of forward(), which may throw on another rank.
  forward_.keep(trained_);
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
  // Ranks may run units of which nothing is gathered as they like: they are no part of the order.
  if (!flat_.shards(unit)) return flat_.finish_gather(unit);
  clock.asks();
  flat_.start_gather(unit);
  // Start them before waiting for this unit: they arrive while it is waited for and while it runs.
  for (const std::size_t next : pass.use(unit)) {
    const dist::CallScope of_next = naming(next);
    flat_.start_gather(next);
  }
  flat_.finish_gather(unit);
  clock.runs();
}

void ShardedDataParallel::drop(std::size_t unit) {
  flat_.reshard(unit);
  // Between passes no next unit will use what was kept for it.
  if (!passes().is_running()) pool_.clear();
}

void ShardedDataParallel::gradient_ready(std::size_t index) {
  // From here on `.grad` is a view of its bucket's flat buffer: see FlatGradients::collect().
  flat_.collect(index);
  // A good moment to receive what peers have sent: no matrix product is running.
  communicator_.progress();
}

void ShardedDataParallel::reduce(std::size_t buffer) {
  RECORD_USER_SCOPE("flat_grad_reduce");
  note_used(flat_[buffer].members());
  in_flight_.start(flat_.gradients(buffer));
}

// The optimizer may have the gradients, unless something is still added to them.
void ShardedDataParallel::reduced(const train::FlatGradients& bucket) {
  const train::FlatParameters& parameters = bucket.parameters();
  if (bucket.averages_at_once() && !reduces_each() && !is_summed_later(list(), parameters)) {
    optimizer().take_gradients(parameters.updated());
  }
}

void ShardedDataParallel::finish_backward() {
  if (reduces_now()) {
    in_flight_.finish();
    flat_.finish_rests();
  }
  Strategy::finish_backward();  // drops the gradients that no rank used; the others stay
  // Here and not at the end of backward: by now all ranks have started the same reductions.
  compare_order(backward_, "backward");
  backward_.keep(backward_.seen());
  note_lost(backward_, "backward");
  if (timed_passes_left_ > 0 && --timed_passes_left_ == 0) choose_lookahead_once();
  // No next unit will use what was kept for it.
  pool_.clear();
}

void ShardedDataParallel::note_lost(const Prefetch& pass, const char* name) {
  if (!pass.lost()) return;
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

// Where a gather does not wait for those of its own unit, ranks that ran others have mixed them up:
// what they have computed is lost, and what they keep of it too. In training they exchange other
// things before the update, where a rank that compares meets one that need not: both throw.
void ShardedDataParallel::compare_order(const Prefetch& pass, const char* name) {
  if (options_.stage < 3 || communicator_.matches_calls()) return;
  if (c10::GradMode::is_enabled() && !pass.is_new()) return;
  const std::vector<double> all =
      dist::all_gather_scalars(communicator_, {base::fnv1a_as_double(order_of(pass))});
  if (std::ranges::count(all, all.front()) == communicator_.size()) return;
  change_on_all_ranks("units were mixed up, load a checkpoint", [&] {
    dist::verify_same(communicator_,
                      fmt::format("the order of units in {} ({})", name, dist::kRuleOfUnits),
                      order_of(pass));
  });
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

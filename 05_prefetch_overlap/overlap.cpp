#include "overlap.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/base/scoped_value.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/gradient_destination.hpp>

namespace zero {

using dist::Purpose;

namespace {

// The first ones touch their memory for the first time; the least of each time counts.
constexpr std::int64_t kTimedPasses = 3;

const OverlapOptions& checked(const OverlapOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

Overlap::Overlap(const train::StrategyArguments& arguments, const OverlapOptions& options)
    : Strategy(arguments),
      options_(checked(options)),
      reduce_each_(arguments.accumulation == train::Accumulation::kReduceEach),
      pool_(options.keep_buffers),
      where_(count()),
      by_unit_(list().units.size()),
      ready_(list().units.size(), 0),
      order_({}),
      schedule_(list()),
      in_flight_(options.in_flight_bytes),
      forward_(std::max<std::int64_t>(options.lookahead, 0)),
      backward_(std::max<std::int64_t>(options.lookahead, 0)),
      timed_passes_left_(options.stage == 3 && options.lookahead == kAutoLookahead ? kTimedPasses
                                                                                   : 0),
      uses_(list().units.size(), 1) {
  communicator_.verify_same_on_all_ranks(
      "the engine's options",
      fmt::format("stage {}\nbuckets of {} bytes, {} in flight\nlookahead {}\n"
                  "units below {} elements whole, {} bytes ahead at most\n{}",
                  options.stage, options.bucket_bytes, options.in_flight_bytes, options.lookahead,
                  options.whole_below, options.ahead_bytes,
                  options.defer_parameter_gather ? "updated parameters gathered in forward"
                                                 : "updated parameters gathered in the step"));
  build_buckets();
  order_ = train::ReductionSchedule(backward_buckets());
  arrived_.assign(buckets_.size(), 0);
  for (Bucket& bucket : buckets_) initialize(bucket);
  broadcast_buffers_from_rank_0();
  if (options_.stage > 0) shard_optimizer();
  // Last: what throws above must leave nothing behind that calls into nothing.
  set_providers();
}

Overlap::~Overlap() {
  for (std::size_t i = 0; i < count() && !released(); ++i) {
    nn::set_gradient_provider(parameter(i), {});
  }
  // A handle may not be dropped while its transfer is in flight, so each is waited for, whatever
  // the one before it said. Whoever called has heard of a peer that is gone from the operation that
  // failed first; here it is said once, and not at all while an error is on its way up.
  bool said = std::uncaught_exceptions() > 0;
  const auto wait = [&](const std::function<void()>& finish) {
    try {
      finish();
    } catch (const std::exception& error) {
      if (!said) log_error(fmt::format("rank {}: {}", communicator_.rank(), message_of(error)));
      said = true;
    }
  };
  for (Bucket& bucket : buckets_) {
    wait([&bucket] { bucket.wait_gather(); });
    wait([&bucket] { bucket.finish_reduce(); });
  }
}

Sharded Overlap::sharded_of(std::size_t unit) const {
  if (options_.stage < 3) return static_cast<Sharded>(options_.stage);
  std::int64_t elements = 0;
  for (const std::size_t i : list().units[unit].parameters) elements += parameter(i).numel();
  return elements < options_.whole_below ? Sharded::kGradients : Sharded::kParameters;
}

bool Overlap::keeps_gradients(std::size_t unit) const {
  return options_.keep_gradients && !reduce_each_ && (unit != 0 || options_.stage < 2);
}

void Overlap::build_buckets() {
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    struct Open {
      std::vector<std::size_t> members;
      std::int64_t bytes = 0;
    };
    // One buffer has one dtype, and a gradient buffer for frozen parameters would be a waste.
    std::map<std::pair<bool, at::ScalarType>, Open> open;
    const auto close = [&](Open& bucket) {
      by_unit_[u].push_back(buckets_.size());
      unit_of_.push_back(u);
      for (std::size_t m = 0; m < bucket.members.size(); ++m) {
        where_[bucket.members[m]] = {buckets_.size(), m};
      }
      buckets_.emplace_back(list(), std::move(bucket.members), sharded_of(u), keeps_gradients(u),
                            communicator(), pool_);
      bucket = {};
    };
    for (const std::size_t i : list().units[u].parameters) {
      Open& bucket = open[{trainable(i), parameter(i).scalar_type()}];
      const std::int64_t bytes = list().parameters[i].bytes();
      if (!bucket.members.empty() && bucket.bytes + bytes > options_.bucket_bytes) close(bucket);
      bucket.members.push_back(i);
      bucket.bytes += bytes;
    }
    for (auto& [kind, bucket] : open) {
      if (!bucket.members.empty()) close(bucket);
    }
  }
}

void Overlap::initialize(Bucket& bucket) {
  const int rank = communicator().rank();
  // Parameters that were built with bytes bring their values along.
  std::vector<at::Tensor> own;
  for (const std::size_t i : bucket.members()) {
    const bool has = memory::has_storage(parameter(i)) && parameter(i).numel() > 0;
    own.push_back(rank == 0 && has ? memory::raw(parameter(i)).clone() : at::Tensor());
  }
  bucket.allocate();
  for (std::size_t m = 0; rank == 0 && m < own.size(); ++m) {
    at::Tensor out = bucket.parameter(m);
    own[m].defined() ? static_cast<void>(out.copy_(own[m])) : first_value(bucket.members()[m], out);
  }
  communicator().broadcast(bucket.full(), /*root=*/0, Purpose::kSetup).wait();
  bucket.keep_shard_only();
}

void Overlap::set_providers() {
  for (Bucket& bucket : buckets_) {
    for (std::size_t m = 0; m < bucket.members().size(); ++m) {
      nn::set_gradient_provider(parameter(bucket.members()[m]),
                                [&bucket, m] { return bucket.gradient_window(m); });
    }
  }
}

train::ModelStateBytes Overlap::predicted_bytes() const {
  train::ModelStateBytes bytes{0, 0, optimizer_bytes()};
  for (const Bucket& bucket : buckets_) {
    const bool split = bucket.sharded() == Sharded::kParameters;
    bytes.parameters += split ? bucket.shard_bytes() : bucket.full_bytes();
    if (!bucket.trainable()) continue;
    // Where micro-batches are reduced one by one, the buffer is needed for the next.
    const bool whole = bucket.sharded() == Sharded::kNothing ||
                       (bucket.sharded() == Sharded::kOptimizer && !reduce_each_);
    if (whole) {
      bytes.gradients += bucket.full_bytes();
      continue;
    }
    // A shard that is nothing but padding is held by nobody.
    bool holds = false;
    for (std::size_t m = 0; m < bucket.members().size(); ++m) {
      holds = holds || bucket.piece(m).tensor.defined();
    }
    if (holds) bytes.gradients += bucket.shard_bytes();
  }
  return bytes;
}

std::int64_t Overlap::gathers(std::size_t unit) const {
  const std::int64_t uses = uses_[unit];
  // The root stays whole between its forward and its backward. The others are gathered for each use
  // in forward, and once for backward, until all their gradients are there.
  if (unit == 0) return uses > 0 ? 1 : 0;
  return uses + (uses > 0 ? 1 : 0);
}

std::int64_t Overlap::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  std::int64_t sum = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    const std::int64_t gather = others * bucket.shard_bytes();
    if (bucket.trainable()) {
      const at::ScalarType dtype = parameter(bucket.members().front()).scalar_type();
      const std::int64_t reduced =
          bucket.layout().shard() * communicator_.reduced_element_size(dtype);
      // An all-reduce is a reduce-scatter and an all-gather of the same bytes.
      sum += (bucket.sharded() == Sharded::kNothing ? 2 : 1) * others * reduced;
      if (bucket.sharded() == Sharded::kOptimizer || bucket.sharded() == Sharded::kGradients) {
        sum += gather;
      }
    }
    if (bucket.sharded() == Sharded::kParameters) sum += gathers(unit_of_[b]) * gather;
  }
  return sum;
}

at::Tensor Overlap::forward(const data::Batch& batch) {
  const ScopedValue trains(trains_, c10::GradMode::is_enabled());
  // Evaluation is no part of a step and does not count for predicted_traffic().
  if (trains_) uses_.assign(uses_.size(), 0);
  if (std::exchange(threw_, false)) {
    reshard_all();
    pool_.clear();
  }
  forward_.begin();
  forward_clock_.begin();
  const std::vector<std::size_t> pending = schedule_.pending_uses();
  at::Tensor loss;
  try {
    loss = Strategy::forward(batch);
  } catch (...) {
    schedule_.restore(pending);  // no backward follows
    threw_ = true;
    throw;
  }
  if (trains_) {
    if (timed_passes_left_ > 0) forward_clock_.end();
    end_of_pass(forward_, "forward");
  } else {
    // Nothing follows that would use what was gathered, or fetched ahead in vain, or kept for
    // reuse.
    reshard_all();
    pool_.clear();
  }
  return loss;
}

void Overlap::backward(const at::Tensor& loss) {
  const ScopedValue within(in_backward_, true);
  backward_.begin();
  backward_clock_.begin();
  try {
    Strategy::backward(loss);
  } catch (...) {
    schedule_.forget();
    throw;
  }
  if (timed_passes_left_ > 0) backward_clock_.end();
  schedule_.end();
  arrived_.assign(arrived_.size(), 0);
  ready_.assign(ready_.size(), 0);
  reshard_all();
  pool_.clear();  // nothing is gathered any more, and no gradient is written
  if (reduces_now()) order_.finish([this](std::size_t b) { launch(b); });
}

void Overlap::end_of_pass(Prefetch& pass, const char* name) {
  if (options_.stage < 3) return;  // nothing to gather: ranks may run different units
  const bool differed = pass.lost();
  if (pass.keep()) {
    // A rank that gathered in another order would wait for ever for what the others do not send.
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

std::vector<UnitTimes> Overlap::least_over_ranks() const {
  std::vector<UnitTimes> passes = {forward_clock_.least(), backward_clock_.least()};
  std::vector<double*> all;
  for (UnitTimes& pass : passes) {
    for (double& seconds : pass.gather) all.push_back(&seconds);
    for (double& seconds : pass.compute) all.push_back(&seconds);
  }
  // The rank that comes last to a gather waits for nobody: its time is that of the gather alone.
  std::vector<double> mine;
  for (const double* seconds : all) mine.push_back(*seconds);
  const std::vector<double> every = dist::all_gather_scalars(communicator_, mine);
  for (std::size_t i = 0; i < every.size(); ++i) {
    *all[i % all.size()] = std::min(*all[i % all.size()], every[i]);
  }
  return passes;
}

std::int64_t Overlap::largest_unit_ahead() const {
  std::int64_t largest = 1;
  for (std::size_t u = 1; u < by_unit_.size(); ++u) {  // the root is never gathered ahead
    std::int64_t bytes = 0;
    for (const std::size_t b : by_unit_[u]) {
      if (buckets_[b].sharded() == Sharded::kParameters) bytes += buckets_[b].full_bytes();
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

void Overlap::choose_lookahead_once() {
  // From the same numbers on every rank, or ranks would gather differently.
  const LookaheadChoice choice =
      choose_lookahead(least_over_ranks(), options_.ahead_bytes / largest_unit_ahead());
  forward_.set_lookahead(choice.units);
  backward_.set_lookahead(choice.units);
  if (communicator_.rank() == 0) {
    log_error(fmt::format("note: lookahead {}: {}", choice.units, choice.why));
  }
}

void Overlap::use(std::size_t unit, Prefetch& pass, PassClock& clock) {
  if (timed_passes_left_ > 0) clock.asks();
  start_gather(unit);
  // Asked for before this unit is waited for: they travel while it is waited for and while it runs.
  for (const std::size_t next : pass.use(unit)) start_gather(next);
  finish_gather(unit);
  if (timed_passes_left_ > 0) clock.runs();
}

void Overlap::pre_forward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  for (const std::size_t over : schedule_.leave_for(u)) end_unit(over);
  if (trains_ && c10::GradMode::is_enabled()) schedule_.used(u);
  if (in_backward_) {  // a checkpoint that runs again: no part of the order of forward
    start_gather(u);
    finish_gather(u);
    return;
  }
  if (c10::GradMode::is_enabled()) ++uses_[u];
  use(u, forward_, forward_clock_);
}

void Overlap::post_forward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  // The root runs last in forward and first in backward: it stays, if there is a backward.
  if (u != 0 || !c10::GradMode::is_enabled()) reshard_unit(u);
}

void Overlap::pre_backward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  for (const std::size_t over : schedule_.leave_for(u)) end_unit(over);
  schedule_.enter(u);
  use(u, backward_, backward_clock_);
  // The last unit needs few, and the shard of the root's gradient is still to come.
  if (backward_.at_end()) pool_.clear();
}

void Overlap::records_backward(nn::Unit& unit) { schedule_.used(list().index_of(unit)); }

void Overlap::end_unit(std::size_t unit) {
  // Whatever this rank's batch has not used of the unit, it never will.
  if (options_.stage < 3) return;  // nothing is gathered in backward, and no turn has an end
  reshard_unit(unit);
  if (is_held(unit)) return;
  for (const std::size_t b : by_unit_[unit]) reduce_if_ready(b);
}

bool Overlap::has_frozen(std::size_t unit) const {
  const auto& members = list().units[unit].parameters;
  return std::any_of(members.begin(), members.end(),
                     [this](std::size_t i) { return !trainable(i); });
}

bool Overlap::has_all_gradients(std::size_t unit) const {
  const auto& of_unit = by_unit_[unit];
  const auto trained = std::count_if(of_unit.begin(), of_unit.end(), [this](std::size_t b) {
    return trainable_members(buckets_[b]) > 0;
  });
  return ready_[unit] >= static_cast<std::size_t>(trained);
}

void Overlap::start_gather(std::size_t unit) {
  RECORD_USER_SCOPE("engine_param_gather");
  for (const std::size_t b : by_unit_[unit]) buckets_[b].start_gather();
}

void Overlap::finish_gather(std::size_t unit) {
  RECORD_USER_SCOPE("engine_param_wait");
  for (const std::size_t b : by_unit_[unit]) buckets_[b].finish_gather();
}

void Overlap::reshard_unit(std::size_t unit) {
  if (is_in_use(unit)) return;
  for (const std::size_t b : by_unit_[unit]) buckets_[b].reshard();
}

void Overlap::reshard_all() {
  for (std::size_t u = 0; u < by_unit_.size(); ++u) reshard_unit(u);
}

void Overlap::gather(std::size_t unit) {
  finish_parameters();
  start_gather(unit);
  finish_gather(unit);
}

void Overlap::drop(std::size_t unit) {
  reshard_unit(unit);
  pool_.clear();
}

void Overlap::gradient_ready(std::size_t index) {
  const auto [b, member] = where_[index];
  Bucket& bucket = buckets_[b];
  if (!bucket.trainable()) {
    throw Error(
        fmt::format("parameter '{}' was frozen when it was sharded and has a gradient now; make "
                    "the strategy after the last parameter is unfrozen",
                    list().parameters[index].name));
  }
  order_.expect(b);
  bucket.collect(member);
  // A good moment to take what peers have sent meanwhile: no matrix product is in flight.
  communicator_.progress();
  if (++arrived_[b] != trainable_members(bucket)) return;
  const std::size_t u = unit_of_[b];
  ++ready_[u];
  // Where nothing is gathered in backward, any moment is as good as another.
  if (options_.stage == 3 && (!schedule_.open(u) || is_held(u))) return;
  // Frozen parameters may be needed for the gradient of the input after the last gradient of a
  // parameter: such a unit stays until another begins.
  if (has_all_gradients(u) && !has_frozen(u)) reshard_unit(u);
  reduce_if_ready(b);
}

void Overlap::reduce_if_ready(std::size_t bucket) {
  if (!reduces_now() || !buckets_[bucket].trainable() || order_.has(bucket)) return;
  order_.ready(bucket, [this](std::size_t next) { launch(next); });
}

void Overlap::launch(std::size_t bucket) {
  RECORD_USER_SCOPE("engine_grad_reduce");
  if (!note_members(bucket)) return;
  const bool whole = options_.stage <= 1 && !reduce_each_;
  in_flight_.start(buckets_[bucket], whole);
}

void Overlap::finish_backward() {
  if (reduces_now()) {
    in_flight_.finish();
    complete_reduction();
  }
  // Not inside backward, where some ranks may have reduced what others have still to reduce.
  end_of_pass(backward_, "backward");
  if (timed_passes_left_ > 0 && --timed_passes_left_ == 0) choose_lookahead_once();
  // What was kept for the next unit has no next unit now.
  pool_.clear();
}

void Overlap::optimizer_step() {
  finish_parameters();
  // A forward that no backward followed has left units whole, with values that the update makes
  // old.
  reshard_all();
  pool_.clear();
  schedule_.forget();
  Strategy::optimizer_step();
}

void Overlap::sync_parameters() {
  RECORD_USER_SCOPE("engine_param_gather");
  // In the order in which forward will ask for them, so that the first unit waits for little.
  for (Bucket& bucket : buckets_) bucket.start_refresh();
  // All have been started before the first is waited for, so that they travel side by side.
  if (!options_.defer_parameter_gather) finish_parameters();
}

void Overlap::finish_parameters() {
  for (Bucket& bucket : buckets_) bucket.wait_gather();
}

void Overlap::zero_grad() {
  // Does nothing unless a backward pass was given up.
  order_.forget();
  arrived_.assign(arrived_.size(), 0);
  ready_.assign(ready_.size(), 0);
  in_flight_.finish();
  for (Bucket& bucket : buckets_) bucket.drop_gradients();
  Strategy::zero_grad();
}

train::ParameterShard Overlap::piece(std::size_t index) const {
  return buckets_[where_[index].bucket].piece(where_[index].member);
}

train::ParameterShard Overlap::local_shard(std::size_t index) const {
  // Whoever asks may write into it, and what is on its way would overwrite that.
  for (Bucket& bucket : buckets_) bucket.wait_gather();
  return buckets_[where_[index].bucket].local_shard(where_[index].member);
}

std::size_t Overlap::trainable_members(const Bucket& bucket) const {
  const auto& members = bucket.members();
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [this](std::size_t i) { return trainable(i); }));
}

bool Overlap::note_members(std::size_t bucket) {
  if (trainable_members(buckets_[bucket]) == 0) return false;
  for (const std::size_t i : buckets_[bucket].members()) note_used(i, gradient(i).defined());
  return true;
}

std::vector<std::size_t> Overlap::backward_buckets() const {
  std::vector<std::size_t> order;
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    if (buckets_[b].trainable()) order.push_back(b);
  }
  return order;
}

}  // namespace zero

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

namespace zero {

namespace {

train::FlatOptions flat_options(const nn::ParameterList& list, std::size_t unit,
                                const ShardingOptions& options, const train::Transfers& transfers) {
  std::int64_t elements = 0;
  for (const std::size_t i : list.units[unit].parameters) elements += list.parameters[i].numel();
  const bool is_whole = options.stage == 3 && elements < options.whole_below;
  return {.sharded = static_cast<train::Sharded>(is_whole ? 2 : options.stage),
          // The root's shards come last in backward, when most memory is in use.
          .keeps_gradients = options.keep_gradients && (unit != 0 || options.stage < 2),
          .transfers = transfers};
}

// Whether the tensor axis adds up gradients of this bucket after its reduction. They share a
// version counter with all others of the bucket.
bool is_summed_later(const nn::ParameterList& list, const train::FlatParameters& bucket) {
  return std::ranges::any_of(
      bucket.members(), [&](std::size_t i) { return list.parameters[i].placement.sums_gradient; });
}

}  // namespace

ShardedDataParallel::ShardedDataParallel(const train::StrategyArguments& arguments,
                                         const ShardingOptions& options,
                                         const train::Transfers& transfers)
    : TensorSharding(
          arguments, options.bucket_bytes,
          [&](const nn::ParameterList& list, std::size_t unit) {
            return flat_options(list, unit, options, transfers);
          },
          transfers.shards == nullptr ? arguments.mesh.data() : *transfers.shards,
          options.keep_buffers),
      options_(options),
      in_flight_(options.in_flight_bytes,
                 [this](const train::FlatGradients& bucket) { reduced(bucket); }),
      forward_(options.lookahead),
      backward_(options.lookahead) {
  const train::Units below =
      options_.defer_parameter_gather ? train::Units::kAwaited : train::Units::kWhole;
  reduce_in_backward(
      flat_.items(), [this](std::size_t b) { reduce(b); },
      options_.stage == 3 ? train::Units::kGathered : below);
}

at::Tensor ShardedDataParallel::forward(const std::function<at::Tensor()>& pass,
                                        std::optional<std::int64_t> loss_terms) {
  forward_.begin();
  at::Tensor loss = Strategy::forward(pass, loss_terms);
  compare_order(forward_, "forward");
  if (c10::GradMode::is_enabled()) {
    note_lost(forward_, "forward");
    trained_ = forward_.seen();
  }
  return loss;
}

void ShardedDataParallel::backward(const at::Tensor& loss) {
  // Not at the end of forward(), which may throw on another rank.
  forward_.keep(trained_);
  backward_.begin();
  Strategy::backward(loss);
}

void ShardedDataParallel::gather(std::size_t unit, train::Gather why) {
  switch (why) {
    case train::Gather::kForward:
      return use(unit, forward_);
    case train::Gather::kBackward:
      use(unit, backward_);
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

void ShardedDataParallel::use(std::size_t unit, Prefetch& pass) {
  verify_weights();  // for a pass that is not forward()
  // Ranks may run units of which nothing is gathered as they like: they are no part of the order.
  if (!flat_.shards(unit)) return flat_.finish_gather(unit);
  flat_.start_gather(unit);
  // Start them before waiting for this unit: they arrive while it is waited for and while it runs.
  for (const std::size_t next : pass.use(unit)) {
    const dist::CallScope of_next = naming(next);
    flat_.start_gather(next);
  }
  flat_.finish_gather(unit);
}

void ShardedDataParallel::drop(std::size_t unit) {
  flat_.reshard(unit);
  // Between passes no next unit will use what was kept for it.
  if (!passes().is_running()) pool_.clear();
}

void ShardedDataParallel::gradient_ready(std::size_t index) {
  // From here on `.grad` is a view of its bucket's flat buffer: see FlatGradients::collect().
  TensorSharding::gradient_ready(index);
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
  Strategy::finish_backward();
  // Here and not at the end of backward: by now all ranks have started the same reductions.
  compare_order(backward_, "backward");
  backward_.keep(backward_.seen());
  note_lost(backward_, "backward");
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

void ShardedDataParallel::sync_parameters() {
  // All gathers start before the first wait, so that they overlap.
  flat_.start_refresh();
  if (!options_.defer_parameter_gather) flat_.wait_gathers();
}

void ShardedDataParallel::zero_grad() {
  Strategy::zero_grad();  // first: after an exception in backward() it reduces what is missing
  in_flight_.finish();
  flat_.drop_gradients();
}

}  // namespace zero

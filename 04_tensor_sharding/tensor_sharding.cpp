#include "tensor_sharding.hpp"

#include <ATen/record_function.h>

#include <limits>

#include <zero/train/cost_sums.hpp>

namespace zero {

namespace {

// The most bytes of a buffer. 0: one buffer per parameter. No limit: one per unit.
std::int64_t buffer_bytes(const std::string& variant) {
  return variant == "per_parameter" ? 0 : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

TensorSharding::TensorSharding(const train::StrategyArguments& arguments,
                               const train::FlatOptions& options)
    : TensorSharding(
          arguments, buffer_bytes(arguments.variant),
          [&](const nn::ParameterList&, std::size_t) { return options; }, arguments.mesh.data(),
          /*keeps_freed=*/false) {}

TensorSharding::TensorSharding(const train::StrategyArguments& arguments, std::int64_t buffer_bytes,
                               const OptionsOfUnit& options_of, dist::Communicator& shards,
                               bool keeps_freed)
    : Strategy(arguments),
      pool_(keeps_freed),
      flat_(
          list(), buffer_bytes,
          [&](std::size_t unit) {
            train::FlatOptions options = options_of(list(), unit);
            options.average = average_;
            options.adds_averages = reduces_each();
            options.keeps_gradients = options.keeps_gradients && !reduces_each();
            options.version = [this] { return passes().forwards().version(); };
            return options;
          },
          shards, pool_) {
  flat_.initialize([this](std::size_t index, at::Tensor out) { write_first_value(index, out); });
  broadcast_buffers();
  shard_optimizer(flat_.placements());
}

void TensorSharding::gradient_ready(std::size_t index) {
  // Copies it into the flat gradient buffer, unless a layer of zero/nn has written it there.
  flat_.collect(index);
}

void TensorSharding::reduce(std::size_t buffer) {
  RECORD_USER_SCOPE("flat_grad_reduce");
  note_used(flat_[buffer].members());
  flat_.gradients(buffer).start_reduce();
  flat_.gradients(buffer).finish_reduce();
}

void TensorSharding::sync_parameters() {
  // All gathers start before the first wait, so that they overlap.
  flat_.start_refresh();
  flat_.wait_gathers();
}

void TensorSharding::zero_grad() {
  Strategy::zero_grad();  // first: after an exception in backward() it reduces what is missing
  flat_.drop_gradients();
}

void TensorSharding::bring(std::size_t index) {
  // A gather in flight would overwrite what the caller writes.
  flat_.wait_gathers();
  flat_.bring(index);
}

train::Costs TensorSharding::costs() const {
  const auto of_unit = [this](std::size_t unit) { return gathers(unit); };
  const train::SentBytes sent = flat_.sent(of_unit);
  return {{flat_.parameter_bytes(), flat_.gradient_bytes(), train::CostSums(*this).optimizer},
          sent.all,
          flat_.gathered_bytes(of_unit),
          sent.between_groups};
}

}  // namespace zero

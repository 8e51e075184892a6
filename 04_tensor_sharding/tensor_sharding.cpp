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
                               train::FlatOptions options)
    : Strategy(arguments),
      flat_(
          list(), buffer_bytes(arguments.variant),
          [&](std::size_t) {
            options.average = average_;
            options.adds_averages = reduces_each();
            return options;
          },
          communicator(), pool_) {
  flat_.initialize([this](std::size_t index, at::Tensor out) { first_values().write(index, out); });
  first_values().broadcast_buffers();
  shard_optimizer(flat_.placements(&communicator()));
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

train::Costs TensorSharding::costs() const {
  const auto of_unit = [this](std::size_t unit) { return gathers(unit); };
  return {{flat_.parameter_bytes(), flat_.gradient_bytes(), train::CostSums(*this).optimizer},
          flat_.sent(of_unit).all,
          flat_.gathered_bytes(of_unit)};
}

}  // namespace zero

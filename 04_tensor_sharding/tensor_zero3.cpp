#include "tensor_zero3.hpp"

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kParameters}),
      whole_model_(arguments.variant == "whole") {
  reduce_in_backward(
      flat_.items(), [this](std::size_t b) { reduce(b); },
      whole_model_ ? train::Units::kGatheredOnce : train::Units::kGathered);
}

void TensorZero3::gather(std::size_t unit, train::Gather /*why*/) {
  flat_.start_gather(unit);
  flat_.finish_gather(unit);
}

std::int64_t TensorZero3::gathers(std::size_t unit) const {
  return whole_model_ ? 1 : Strategy::gathers(unit);
}

}  // namespace zero

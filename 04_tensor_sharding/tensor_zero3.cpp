#include "tensor_zero3.hpp"

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kParameters}),
      whole_model_(arguments.variant == "whole") {
  reduce_in_backward(
      flat_.items(), [this](std::size_t b) { reduce(b); },
      whole_model_ ? train::Units::kGatheredOnce : train::Units::kGathered);
}

void TensorZero3::gather(std::size_t unit, train::Gather why) {
  const bool begins = why == train::Gather::kForward || why == train::Gather::kBackward;
  const bool all = whole_model_ && unit == kRoot && begins;
  for (std::size_t u = all ? kRoot : unit; u < (all ? list().units.size() : unit + 1); ++u) {
    flat_.start_gather(u);
    flat_.finish_gather(u);
  }
}

std::int64_t TensorZero3::gathers(std::size_t unit) const {
  return whole_model_ ? 1 : Strategy::gathers(unit);
}

}  // namespace zero

#include "tensor_zero3.hpp"

#include <c10/core/GradMode.h>

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kParameters}),
      whole_model_(arguments.variant == "whole") {
  reduce_in_backward(flat_.items(), {.reduce = [this](std::size_t b) { reduce(b); },
                                     .reshard = [this](std::size_t u) { drop(u); }});
}

void TensorZero3::pre_forward(std::size_t unit) {
  (unit == kRoot && whole_model_) ? gather_all() : gather(unit);
}

void TensorZero3::post_forward(std::size_t unit) {
  // In evaluation there is no backward.
  if (c10::GradMode::is_enabled() && stays_whole(unit)) return;
  (unit == kRoot && whole_model_) ? reshard_all() : drop(unit);
}

void TensorZero3::gather(std::size_t unit) {
  flat_.start_gather(unit);
  flat_.finish_gather(unit);
}

void TensorZero3::drop(std::size_t unit) {
  if (!is_in_use(unit) && !(whole_model_ && in_backward())) flat_.reshard(unit);
}

std::int64_t TensorZero3::gathers(std::size_t unit) const {
  return whole_model_ ? 1 : Strategy::gathers(unit);
}

}  // namespace zero

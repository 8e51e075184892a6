#include "tensor_zero3.hpp"

#include <c10/core/GradMode.h>

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kParameters}),
      whole_model_(arguments.variant == "whole"),
      by_leaf_(arguments.variant == "leaf") {
  reduce_in_backward(flat_.items(),
                     {.reduce = [this](std::size_t b) { reduce(b); },
                      .reshard = [this](std::size_t u) { drop(u); },
                      .ends_with_gradients = [this](std::size_t u) { return is_leaf(u); }});
}

bool TensorZero3::is_leaf(std::size_t unit) const {
  return by_leaf_ && dynamic_cast<const nn::Leaf*>(list().units[unit].unit) != nullptr;
}

void TensorZero3::pre_forward(std::size_t unit) {
  (unit == kRoot && whole_model_) ? gather_all() : gather(unit);
}

void TensorZero3::post_forward(std::size_t unit) {
  // A forward inside backward recomputes an activation checkpoint: its backward comes next.
  if (in_backward() && is_leaf(unit)) return;
  // In evaluation there is no backward.
  if (c10::GradMode::is_enabled() && stays_whole(unit)) return;
  (unit == kRoot && whole_model_) ? reshard_all() : drop(unit);
}

void TensorZero3::post_backward(std::size_t unit) {
  // A leaf no longer needs its parameters. If it is used again, it is gathered again.
  if (is_leaf(unit) && !stays_whole(unit)) drop(unit);
}

void TensorZero3::gather(std::size_t unit) {
  flat_.start_gather(unit);
  flat_.finish_gather(unit);
}

void TensorZero3::drop(std::size_t unit) {
  if (!is_in_use(unit) && !(whole_model_ && in_backward())) flat_.reshard(unit);
}

std::int64_t TensorZero3::gathers(std::size_t unit) const {
  if (whole_model_) return 1;
  // In backward a unit is gathered once for all its uses, but a leaf once for each use.
  return is_leaf(unit) && unit != kRoot ? 2 * uses(unit) : Strategy::gathers(unit);
}

}  // namespace zero

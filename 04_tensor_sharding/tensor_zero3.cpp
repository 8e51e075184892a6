#include "tensor_zero3.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <numeric>

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kParameters}),
      whole_model_(arguments.variant == "whole"),
      by_leaf_(arguments.variant == "leaf") {
  const auto reshard = [this](std::size_t u) {
    if (!whole_model_) drop(u);
  };
  reduce_in_backward(flat_.items(),
                     {.reduce = [this](std::size_t b) { reduce(b); },
                      .reshard = reshard,
                      .ends_with_gradients = [this](std::size_t u) { return is_leaf(u); }});
}

bool TensorZero3::is_leaf(std::size_t unit) const {
  return by_leaf_ && dynamic_cast<const nn::Leaf*>(list().units[unit].unit) != nullptr;
}

std::vector<std::size_t> TensorZero3::units_to_gather(std::size_t unit) const {
  if (!whole_model_ || unit != 0) return {unit};
  std::vector<std::size_t> all(list().units.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void TensorZero3::pre_forward(std::size_t unit) {
  for (const std::size_t u : units_to_gather(unit)) gather(u);
}

void TensorZero3::post_forward(std::size_t unit) {
  const bool backward_follows = c10::GradMode::is_enabled();
  for (const std::size_t u : units_to_gather(unit)) {
    // A forward inside backward recomputes an activation checkpoint: its backward comes next.
    if (in_backward() && is_leaf(u)) continue;
    if (!backward_follows || !stays_whole(u)) drop(u);
  }
}

void TensorZero3::pre_backward(std::size_t unit) {
  for (const std::size_t u : units_to_gather(unit)) gather(u);
}

void TensorZero3::post_backward(std::size_t unit) {
  // A leaf no longer needs its parameters. If it is used again, it is gathered again.
  if (is_leaf(unit) && !stays_whole(unit)) drop(unit);
}

void TensorZero3::gather(std::size_t unit) {
  RECORD_USER_SCOPE("tensor_param_gather");
  flat_.start_gather(unit);
  flat_.finish_gather(unit);
}

void TensorZero3::drop(std::size_t unit) {
  if (!is_in_use(unit)) flat_.reshard(unit);
}

std::int64_t TensorZero3::gathers(std::size_t unit) const {
  if (whole_model_) return 1;
  const std::int64_t once = uses(unit) > 0 ? 1 : 0;
  if (stays_whole(unit)) return once;
  // In backward a unit is gathered once for all its uses, but a leaf once for each use.
  return is_leaf(unit) ? 2 * uses(unit) : uses(unit) + once;
}

}  // namespace zero

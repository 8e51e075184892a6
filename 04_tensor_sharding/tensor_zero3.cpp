#include "tensor_zero3.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <numeric>

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kParameters}),
      whole_model_(arguments.variant == "whole"),
      by_leaf_(arguments.variant == "leaf"),
      schedule_(list(), flat_.items(),
                {.reduce = [this](std::size_t b) { reduce(b); },
                 .reshard =
                     [this](std::size_t u) {
                       if (!whole_model_) drop(u);
                     },
                 .is_held = [this](std::size_t u) { return is_held(u); },
                 .ends_with_gradients = [this](std::size_t u) { return is_leaf(u); }}) {}

bool TensorZero3::is_leaf(std::size_t unit) const {
  return by_leaf_ && dynamic_cast<const nn::Leaf*>(list().units[unit].unit) != nullptr;
}

std::vector<std::size_t> TensorZero3::units_to_gather(std::size_t unit) const {
  if (!whole_model_ || unit != 0) return {unit};
  std::vector<std::size_t> all(list().units.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

at::Tensor TensorZero3::forward(const data::Batch& batch) {
  schedule_.begin_forward(c10::GradMode::is_enabled());
  at::Tensor loss = TensorSharding::forward(batch);
  schedule_.end_forward();
  return loss;
}

void TensorZero3::pre_forward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  schedule_.enter_forward(u);
  for (const std::size_t each : units_to_gather(u)) gather(each);
}

void TensorZero3::post_forward(nn::Unit& unit) {
  const bool backward_follows = c10::GradMode::is_enabled();
  for (const std::size_t u : units_to_gather(list().index_of(unit))) {
    // A forward inside backward is a checkpoint running again: its own backward follows at once.
    if (in_backward() && is_leaf(u)) continue;
    if (!backward_follows || !stays_whole(u)) drop(u);
  }
}

void TensorZero3::pre_backward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  schedule_.enter_backward(u);
  for (const std::size_t each : units_to_gather(u)) gather(each);
}

void TensorZero3::records_backward(nn::Unit& unit) {
  schedule_.expect_backward(list().index_of(unit));
}

void TensorZero3::post_backward(nn::Unit& unit) {
  // A leaf needs its parameters no longer, and is gathered again for each other use.
  const std::size_t u = list().index_of(unit);
  if (is_leaf(u) && !stays_whole(u)) drop(u);
}

void TensorZero3::gradient_ready(std::size_t index) {
  TensorSharding::gradient_ready(index);
  schedule_.gradient_ready(index);
}

void TensorZero3::end_backward() {
  schedule_.end_units();
  // Still whole are all units under "whole", the root, and the unit that ran last.
  reshard_all();
  schedule_.reduce_rest();
}

void TensorZero3::finish_backward() {
  if (reduces_now()) complete_reduction();
}

void TensorZero3::zero_grad() {
  schedule_.give_up();
  TensorSharding::zero_grad();
}

void TensorZero3::optimizer_step() {
  // A forward without a backward has left the root whole, with values that the update makes old.
  reshard_all();
  schedule_.forget_forwards();
  TensorSharding::optimizer_step();
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
  const std::int64_t uses = schedule_.uses(unit);
  if (whole_model_) return 1;
  if (stays_whole(unit)) return uses > 0 ? 1 : 0;
  // In backward a unit stays whole until all its gradients are complete, a leaf for one use only.
  return is_leaf(unit) ? 2 * uses : uses + (uses > 0 ? 1 : 0);
}

}  // namespace zero

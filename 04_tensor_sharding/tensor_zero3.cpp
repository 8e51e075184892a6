#include "tensor_zero3.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include <zero/base/scoped_value.hpp>

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, /*split=*/true),
      whole_model_(arguments.variant == "whole"),
      by_leaf_(arguments.variant == "leaf"),
      uses_(list().units.size(), 1),
      order_(backward_groups()),
      schedule_(list()),
      unit_of_(groups().size()),
      ready_(list().units.size(), 0) {
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    for (const std::size_t g : groups_of(u)) unit_of_[g] = u;
  }
}

bool TensorZero3::is_leaf(std::size_t unit) const {
  return by_leaf_ && dynamic_cast<const nn::Leaf*>(list().units[unit].unit) != nullptr;
}

std::vector<std::size_t> TensorZero3::units_to_gather(std::size_t unit) const {
  if (!whole_model_ || unit != 0) return {unit};
  std::vector<std::size_t> all;
  for (std::size_t u = 0; u < list().units.size(); ++u) all.push_back(u);
  return all;
}

at::Tensor TensorZero3::forward(const data::Batch& batch) {
  const ScopedValue trains(trains_, c10::GradMode::is_enabled());
  // Evaluation is no part of a step and does not count for predicted_traffic().
  if (trains_) uses_.assign(uses_.size(), 0);
  if (std::exchange(threw_, false)) reshard_all();
  const std::vector<std::size_t> pending = schedule_.pending_uses();
  try {
    return TensorSharding::forward(batch);
  } catch (...) {
    schedule_.restore(pending);  // no backward follows
    threw_ = true;
    throw;
  }
}

void TensorZero3::backward(const at::Tensor& loss) {
  const ScopedValue within(in_backward_, true);
  try {
    TensorSharding::backward(loss);
  } catch (...) {
    schedule_.forget();
    threw_ = true;
    throw;
  }
  schedule_.end();
  // What is whole still: all under "whole", the root, and what ran last.
  reshard_all();
  forget_arrivals();
  ready_.assign(ready_.size(), 0);
  if (!reduces_now()) return;
  order_.finish([this](std::size_t g) { reduce(g, /*keep_full=*/false); });
}

void TensorZero3::pre_forward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  // Inside backward, where a part under activation checkpointing runs again.
  for (const std::size_t over : schedule_.leave_for(u)) end_unit(over);
  if (trains_ && c10::GradMode::is_enabled()) schedule_.used(u);
  if (c10::GradMode::is_enabled() && !in_backward_) ++uses_[u];
  for (const std::size_t each : units_to_gather(u)) gather(each);
}

void TensorZero3::post_forward(nn::Unit& unit) {
  const bool backward_follows = c10::GradMode::is_enabled();
  for (const std::size_t u : units_to_gather(list().index_of(unit))) {
    // A forward inside backward is a checkpoint that runs again: its own backward follows at once.
    if (in_backward_ && is_leaf(u)) continue;
    if (!backward_follows || !stays_whole(u)) drop(u);
  }
}

void TensorZero3::pre_backward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  for (const std::size_t over : schedule_.leave_for(u)) end_unit(over);
  schedule_.enter(u);
  for (const std::size_t each : units_to_gather(u)) gather(each);
}

void TensorZero3::records_backward(nn::Unit& unit) { schedule_.used(list().index_of(unit)); }

void TensorZero3::post_backward(nn::Unit& unit) {
  // A leaf is done with its parameters, and is gathered again for each other use.
  const std::size_t u = list().index_of(unit);
  if (is_leaf(u) && !stays_whole(u)) drop(u);
}

void TensorZero3::end_unit(std::size_t unit) {
  // Whatever this rank's batch has not used of the unit, it never will.
  if (!whole_model_) drop(unit);
  if (is_held(unit)) return;
  for (const std::size_t g : groups_of(unit)) launch(g);
}

void TensorZero3::gradient_ready(std::size_t index) {
  if (groups()[group_of(index)].trainable()) order_.expect(group_of(index));
  TensorSharding::gradient_ready(index);
}

void TensorZero3::group_ready(std::size_t group) {
  const std::size_t u = unit_of_[group];
  ++ready_[u];
  if (!schedule_.open(u) || is_held(u)) return;
  // Parameters go first: what the reduction takes then is not needed on top of them. Frozen ones
  // may be needed for the gradient of the input after the last gradient of a parameter; a leaf has
  // that by now.
  if (has_all_gradients(u) && (is_leaf(u) || !has_frozen(u)) && !whole_model_) drop(u);
  launch(group);
}

void TensorZero3::launch(std::size_t group) {
  if (!reduces_now() || !groups()[group].trainable() || order_.has(group)) return;
  order_.ready(group, [this](std::size_t g) { reduce(g, /*keep_full=*/false); });
}

bool TensorZero3::has_all_gradients(std::size_t unit) const {
  const auto& of_unit = groups_of(unit);
  const auto trained = std::count_if(of_unit.begin(), of_unit.end(),
                                     [this](std::size_t g) { return trainable_members(g) > 0; });
  return ready_[unit] >= static_cast<std::size_t>(trained);
}

bool TensorZero3::has_frozen(std::size_t unit) const {
  const auto& members = list().units[unit].parameters;
  return std::any_of(members.begin(), members.end(),
                     [this](std::size_t i) { return !trainable(i); });
}

void TensorZero3::finish_backward() {
  if (reduces_now()) complete_reduction();
}

void TensorZero3::zero_grad() {
  // Does nothing unless a backward pass was given up.
  order_.forget();
  ready_.assign(ready_.size(), 0);
  TensorSharding::zero_grad();
}

void TensorZero3::optimizer_step() {
  // A forward that no backward followed has left the root whole, with values that
  // the update makes old.
  reshard_all();
  schedule_.forget();
  TensorSharding::optimizer_step();
}

void TensorZero3::reshard_all() {
  for (std::size_t u = 0; u < list().units.size(); ++u) drop(u);
}

void TensorZero3::gather(std::size_t unit) {
  RECORD_USER_SCOPE("tensor_param_gather");
  for (const std::size_t g : groups_of(unit)) groups()[g].gather();
}

void TensorZero3::drop(std::size_t unit) {
  if (is_in_use(unit)) return;
  for (const std::size_t g : groups_of(unit)) groups()[g].reshard();
}

train::ModelStateBytes TensorZero3::predicted_bytes() const {
  return {shard_bytes(/*trainable_only=*/false), gradient_shard_bytes(), optimizer_bytes()};
}

std::int64_t TensorZero3::gathers(std::size_t unit) const {
  const std::int64_t uses = uses_[unit];
  if (whole_model_) return 1;
  if (stays_whole(unit)) return uses > 0 ? 1 : 0;
  // In backward a unit stays whole until all its gradients are there, a leaf for one use only.
  return is_leaf(unit) ? 2 * uses : uses + (uses > 0 ? 1 : 0);
}

std::int64_t TensorZero3::predicted_traffic() const {
  std::int64_t shards = reduced_shard_bytes();  // reduce-scattered once
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    for (const std::size_t g : groups_of(u)) shards += gathers(u) * groups()[g].shard_bytes();
  }
  return (communicator_.size() - 1) * shards;
}

}  // namespace zero

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "stages.hpp"

namespace zero {

TensorZero3::TensorZero3(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, /*split=*/true),
      whole_model_(arguments.variant == "whole"),
      order_(backward_groups()),
      unit_of_(groups().size()),
      ready_(list().units.size(), 0) {
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    for (const std::size_t g : groups_of(u)) unit_of_[g] = u;
  }
}

std::vector<std::size_t> TensorZero3::units_around(const nn::Unit& unit) const {
  std::size_t u = 0;
  while (list().units[u].unit != &unit) ++u;
  if (!whole_model_ || u != 0) return {u};
  std::vector<std::size_t> all;
  for (u = 0; u < list().units.size(); ++u) all.push_back(u);
  return all;
}

void TensorZero3::pre_forward(nn::Unit& unit) {
  for (const std::size_t u : units_around(unit)) gather(u);
}

void TensorZero3::post_forward(nn::Unit& unit) {
  const bool backward_follows = c10::GradMode::is_enabled();
  for (const std::size_t u : units_around(unit)) {
    if (!backward_follows || !stays_whole(u)) reshard(u);
  }
}

void TensorZero3::pre_backward(nn::Unit& unit) {
  for (const std::size_t u : units_around(unit)) gather(u);
}

void TensorZero3::post_backward(nn::Unit& unit) {
  // Only a unit that nothing in it is trained of needs this; the others end with their gradients.
  for (const std::size_t u : units_around(unit)) {
    const auto& members = list().units[u].parameters;
    const bool trained =
        std::any_of(members.begin(), members.end(), [this](std::size_t i) { return trainable(i); });
    if (!trained && !stays_whole(u)) reshard(u);
  }
}

void TensorZero3::group_ready(std::size_t group) {
  const std::size_t u = unit_of_[group];
  const auto& siblings = groups_of(u);
  const auto trained = static_cast<std::size_t>(std::count_if(
      siblings.begin(), siblings.end(), [this](std::size_t g) { return groups()[g].trainable(); }));
  // A unit that is used twice has its last gradient after its last use: nothing is dropped early.
  if (++ready_[u] >= trained && !whole_model_) reshard(u);
  if (!reduces_now()) return;
  order_.ready(group, [this](std::size_t g) { reduce(g, /*keep_full=*/false); });
}

void TensorZero3::finish_backward() {
  for (std::size_t u = 0; u < list().units.size(); ++u) reshard(u);
  forget_arrivals();
  ready_.assign(ready_.size(), 0);
  if (!reduces_now()) return;
  order_.finish([this](std::size_t g) { reduce(g, /*keep_full=*/false); });
  complete_reduction();
}

void TensorZero3::gather(std::size_t unit) {
  RECORD_USER_SCOPE("tensor_param_gather");
  for (const std::size_t g : groups_of(unit)) groups()[g].gather();
}

void TensorZero3::reshard(std::size_t unit) {
  for (const std::size_t g : groups_of(unit)) groups()[g].reshard();
}

train::ModelStateBytes TensorZero3::predicted_bytes() const {
  return {shard_bytes(/*trainable_only=*/false), gradient_shard_bytes(), optimizer_bytes()};
}

std::int64_t TensorZero3::predicted_traffic() const {
  std::int64_t shards = reduced_shard_bytes();  // reduce-scattered once
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    for (const std::size_t g : groups_of(u)) {
      shards += (stays_whole(u) ? 1 : 2) * groups()[g].shard_bytes();
    }
  }
  return (communicator_.size() - 1) * shards;
}

}  // namespace zero

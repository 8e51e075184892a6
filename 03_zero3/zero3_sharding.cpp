#include "zero3_sharding.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/registry.hpp>

namespace zero {

using dist::Purpose;

namespace {
constexpr std::size_t kRoot = 0;
}

Zero3Sharding::Zero3Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      whole_model_(arguments.variant == "whole"),
      owners_(list(), communicator(), arguments.ownership),
      order_(train::backward_order(list())),
      gathered_(list().units.size(), false),
      gradients_(list().units.size(), 0) {
  distribute_from_rank_0();
  narrow_optimizer();
}

void Zero3Sharding::distribute_from_rank_0() {
  const int rank = communicator_.rank();
  for (std::size_t i = 0; i < count(); ++i) {
    const int owner = owners_.of(i);
    const at::Tensor tensor = memory::raw(parameter(i));
    if (rank == 0 || rank == owner) fill(i);
    if (owner != 0 && rank == 0) communicator_.send(tensor, owner, Purpose::kSetup).wait();
    if (owner != 0 && rank == owner) communicator_.recv(tensor, 0, Purpose::kSetup).wait();
    if (!owns(i)) memory::release_storage(parameter(i));
  }
  broadcast_buffers_from_rank_0();
}

void Zero3Sharding::pre_forward(nn::Unit& unit) {
  for (const std::size_t u : units_around(unit)) gather(u);
}

void Zero3Sharding::post_forward(nn::Unit& unit) {
  // The root is the last to finish forward and the first to begin backward: to drop it in between
  // would only send it twice. In evaluation there is no backward.
  const bool backward_follows = c10::GradMode::is_enabled();
  if (backward_follows && (whole_model_ || index_of(unit) == kRoot)) return;
  for (const std::size_t u : units_around(unit)) reshard(u);
}

void Zero3Sharding::pre_backward(nn::Unit& unit) {
  for (const std::size_t u : units_around(unit)) gather(u);
}

void Zero3Sharding::post_backward(nn::Unit& unit) {
  // Units end with their last gradient, but for those that hold frozen parameters: these may be
  // needed for the gradient of the input after the last gradient of a parameter.
  const std::size_t u = index_of(unit);
  if (has_frozen(u) && has_all_gradients(u) && !whole_model_ && u != kRoot) reshard(u);
}

bool Zero3Sharding::has_frozen(std::size_t unit) const {
  const auto& members = list().units[unit].parameters;
  return std::any_of(members.begin(), members.end(),
                     [this](std::size_t i) { return !trainable(i); });
}

bool Zero3Sharding::has_all_gradients(std::size_t unit) const {
  const auto& members = list().units[unit].parameters;
  const auto trained =
      std::count_if(members.begin(), members.end(), [this](std::size_t i) { return trainable(i); });
  return gradients_[unit] >= static_cast<std::size_t>(trained);
}

void Zero3Sharding::gradient_ready(std::size_t index) {
  const std::size_t u = list().parameters[index].unit;
  ++gradients_[u];
  if (has_all_gradients(u) && !has_frozen(u) && !whole_model_) reshard(u);
  if (!reduces_now()) return;
  begin_reduction();
  order_.ready(index, [this](std::size_t i) { reduce_to_owner(i); });
}

void Zero3Sharding::finish_backward() {
  for (std::size_t u = 0; u < gathered_.size(); ++u) reshard(u);
  gradients_.assign(gradients_.size(), 0);
  if (!reduces_now()) return;
  begin_reduction();
  order_.finish([this](std::size_t i) { reduce_to_owner(i); });
  complete_reduction();
}

void Zero3Sharding::begin_reduction() {
  // Which parameters take part may have changed since the last time: they can be frozen between
  // steps.
  if (order_.idle()) order_ = train::LaunchOrder(train::backward_order(list()));
}

void Zero3Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero3_grad_reduce");
  communicator_.reduce(gradient_to_reduce(index), owners_.of(index), Purpose::kGradient).wait();
  if (!owns(index)) drop_gradient(index);
}

void Zero3Sharding::gather(std::size_t unit) {
  if (gathered_[unit]) return;
  RECORD_USER_SCOPE("zero3_param_gather");
  const memory::Charge charge(memory::Category::kParameters);
  const auto& members = list().units[unit].parameters;
  for (const std::size_t i : members) memory::allocate_storage(parameter(i));
  train::broadcast_from_owners(list(), members, owners_, communicator_, Purpose::kParameter);
  gathered_[unit] = true;
}

void Zero3Sharding::reshard(std::size_t unit) {
  if (!gathered_[unit]) return;
  // This is ZeRO-3: the bytes go back to the allocator. The tensors stay, with their shapes, so
  // that what autograd saved of them is valid again after the next gather.
  for (const std::size_t i : list().units[unit].parameters) {
    if (!owns(i)) memory::release_storage(parameter(i));
  }
  gathered_[unit] = false;
}

std::size_t Zero3Sharding::index_of(const nn::Unit& unit) const {
  std::size_t u = 0;
  while (list().units[u].unit != &unit) ++u;
  return u;
}

std::vector<std::size_t> Zero3Sharding::units_around(const nn::Unit& unit) const {
  if (!whole_model_ || index_of(unit) != kRoot) return {index_of(unit)};
  std::vector<std::size_t> all;
  for (std::size_t u = 0; u < list().units.size(); ++u) all.push_back(u);
  return all;
}

train::ModelStateBytes Zero3Sharding::predicted_bytes() const {
  return {owners_.bytes(), owners_.trainable_bytes(), optimizer_bytes()};
}

std::int64_t Zero3Sharding::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  std::int64_t gathered_once = 0;  // of what this rank owns
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    if (!whole_model_ && u != kRoot) continue;
    for (const std::size_t i : list().units[u].parameters) {
      if (owns(i)) gathered_once += list().parameters[i].bytes();
    }
  }
  return reduced_bytes() - reduced_owned_bytes() + others * (2 * owners_.bytes() - gathered_once);
}

void register_zero3(train::Registry& registry) {
  registry.add({"zero3", "03_zero3", {"unit", "whole"}, [](const auto& arguments) {
                  return std::make_unique<Zero3Sharding>(arguments);
                }});
}

}  // namespace zero

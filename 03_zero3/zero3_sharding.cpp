#include "zero3_sharding.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero {

using dist::Purpose;

namespace {
constexpr std::size_t kRoot = 0;
}

Zero3Sharding::Zero3Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      whole_model_(arguments.variant == "whole"),
      owners_(list(), communicator(), arguments.ownership),
      owned_(count()),
      gathered_(list().units.size(), false) {
  distribute_from_rank_0();
  shard_optimizer();
  const auto reshard = [this](std::size_t u) {
    if (!whole_model_) drop(u);
  };
  reduce_in_backward(train::BackwardSchedule::one_by_one(list()),
                     {.reduce = [this](std::size_t i) { reduce_to_owner(i); }, .reshard = reshard});
}

void Zero3Sharding::distribute_from_rank_0() {
  const int rank = communicator_.rank();
  for (std::size_t i = 0; i < count(); ++i) {
    const int owner = owners_.of(i);
    const at::Tensor tensor = memory::raw(parameter(i));
    if (rank == 0 || rank == owner) fill(i);
    if (owner != 0 && rank == 0) communicator_.send(tensor, owner, Purpose::kSetup).wait();
    if (owner != 0 && rank == owner) communicator_.recv(tensor, 0, Purpose::kSetup).wait();
    if (!owns(i)) {
      memory::release_storage(parameter(i), read_too_early(i));
      continue;
    }
    owned_[i] = tensor;  // keeps the bytes; the parameter uses them while its unit is gathered
    memory::separate_storage(parameter(i), read_too_early(i));
  }
  broadcast_buffers_from_rank_0();
}

std::string Zero3Sharding::read_too_early(std::size_t index) const {
  return train::unsharded_read(list(), {index});
}

void Zero3Sharding::pre_forward(std::size_t unit) {
  for (const std::size_t u : units_to_gather(unit)) gather(u);
}

void Zero3Sharding::post_forward(std::size_t unit) {
  // The root is the last to finish forward and the first to begin backward: dropping it in between
  // would only send it twice. In evaluation there is no backward.
  const bool backward_follows = c10::GradMode::is_enabled();
  if (backward_follows && (whole_model_ || unit == kRoot)) return;
  for (const std::size_t u : units_to_gather(unit)) drop(u);
}

void Zero3Sharding::pre_backward(std::size_t unit) {
  for (const std::size_t u : units_to_gather(unit)) gather(u);
}

void Zero3Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero3_grad_reduce");
  communicator_.reduce(gradient_to_reduce(index), owners_.of(index), Purpose::kGradient, average_)
      .wait();
  // The optimizer reads it there: since shard_optimizer() it holds owned_, not the parameters.
  if (owns(index)) owned_[index].mutable_grad() = gradient(index);
  drop_gradient(index);
}

void Zero3Sharding::gather(std::size_t unit) {
  if (gathered_[unit]) return;
  RECORD_USER_SCOPE("zero3_param_gather");
  const memory::Charge charge(memory::Category::kParameters);
  const auto& members = list().units[unit].parameters;
  for (const std::size_t i : members) {
    owns(i) ? memory::borrow_storage(parameter(i), owned_[i])
            : memory::allocate_storage(parameter(i));
  }
  train::broadcast_from_owners(list(), members, owners_, communicator_, Purpose::kParameter);
  gathered_[unit] = true;
}

void Zero3Sharding::drop(std::size_t unit) {
  if (!gathered_[unit] || is_in_use(unit)) return;
  // This is ZeRO-3: the bytes go back to the allocator. Tensors and shapes stay, so that autograd
  // can use the tensors that it has saved once the next gather brings the bytes back.
  for (const std::size_t i : list().units[unit].parameters) {
    memory::release_storage(parameter(i), read_too_early(i));
  }
  gathered_[unit] = false;
}

std::vector<std::size_t> Zero3Sharding::units_to_gather(std::size_t unit) const {
  if (!whole_model_ || unit != kRoot) return {unit};
  std::vector<std::size_t> all;
  for (std::size_t u = 0; u < list().units.size(); ++u) all.push_back(u);
  return all;
}

std::int64_t Zero3Sharding::gathers(std::size_t unit) const {
  if (whole_model_) return 1;
  // The root stays whole between its forward and its backward. Other units are gathered for each
  // use in forward, and once in backward, and stay whole until their gradients are complete.
  const std::int64_t once = uses(unit) > 0 ? 1 : 0;
  return unit == kRoot ? once : uses(unit) + once;
}

train::Costs Zero3Sharding::costs() const {
  const train::CostSums v(*this);
  std::int64_t gathered = 0;  // bytes that this rank sends to each other rank in gathers
  for (std::size_t i = 0; i < count(); ++i) {
    const nn::Parameter& p = list().parameters[i];
    if (owns(i)) gathered += gathers(p.unit) * p.bytes();
  }
  return {{v.own_parameters, v.own_trainable, v.optimizer},
          v.reduced - v.own_reduced + v.others * gathered};
}

void register_zero3(train::Registry& registry) {
  registry.add({"zero3", "03_zero3", {"unit", "whole"}, [](const auto& arguments) {
                  return std::make_unique<Zero3Sharding>(arguments);
                }});
}

}  // namespace zero

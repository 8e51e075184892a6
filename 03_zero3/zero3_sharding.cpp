#include "zero3_sharding.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <utility>

#include <zero/memory/accounting.hpp>
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
      schedule_(list(), train::BackwardSchedule::one_by_one(list()),
                {.reduce = [this](std::size_t i) { reduce_to_owner(i); },
                 .reshard =
                     [this](std::size_t u) {
                       if (!whole_model_) drop(u);
                     },
                 .is_held = [this](std::size_t u) { return is_held(u); }}),
      owned_(count()),
      gathered_(list().units.size(), false) {
  distribute_from_rank_0();
  shard_optimizer();
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

at::Tensor Zero3Sharding::forward(const data::Batch& batch) {
  schedule_.begin_forward(c10::GradMode::is_enabled());
  at::Tensor loss = Strategy::forward(batch);
  schedule_.end_forward();
  return loss;
}

void Zero3Sharding::pre_forward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  schedule_.enter_forward(u);
  for (const std::size_t each : units_to_gather(u)) gather(each);
}

void Zero3Sharding::post_forward(nn::Unit& unit) {
  // The root is the last to finish forward and the first to begin backward: dropping it in between
  // would only send it twice. In evaluation there is no backward.
  const std::size_t u = list().index_of(unit);
  const bool backward_follows = c10::GradMode::is_enabled();
  if (backward_follows && (whole_model_ || u == kRoot)) return;
  for (const std::size_t each : units_to_gather(u)) drop(each);
}

void Zero3Sharding::pre_backward(nn::Unit& unit) {
  const std::size_t u = list().index_of(unit);
  schedule_.enter_backward(u);
  for (const std::size_t each : units_to_gather(u)) gather(each);
}

void Zero3Sharding::records_backward(nn::Unit& unit) {
  schedule_.expect_backward(list().index_of(unit));
}

void Zero3Sharding::gradient_ready(std::size_t index) { schedule_.gradient_ready(index); }

void Zero3Sharding::end_backward() {
  schedule_.end_units();
  reshard_all();
  schedule_.reduce_rest();
}

void Zero3Sharding::finish_backward() {
  if (reduces_now()) complete_reduction();
}

void Zero3Sharding::zero_grad() {
  schedule_.give_up();
  for (at::Tensor& owned : owned_) {
    if (owned.defined()) owned.mutable_grad().reset();
  }
  Strategy::zero_grad();
}

void Zero3Sharding::optimizer_step() {
  // A forward without a backward has left the root whole, with values that the update makes old.
  reshard_all();
  schedule_.forget_forwards();
  Strategy::optimizer_step();
}

void Zero3Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero3_grad_reduce");
  communicator_.reduce(gradient_to_reduce(index), owners_.of(index), Purpose::kGradient, average_)
      .wait();
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
  // This is ZeRO-3: the bytes go back to the allocator. The tensors stay, with their shapes, so
  // that what autograd saved of them is valid again after the next gather.
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

train::ModelStateBytes Zero3Sharding::predicted_bytes() const {
  return {owners_.bytes(), owners_.trainable_bytes(), optimizer_bytes()};
}

std::int64_t Zero3Sharding::gathers(std::size_t unit) const {
  if (whole_model_) return 1;
  // The root stays whole between its forward and its backward. Other units are gathered for each
  // use in forward, and once for backward, until all their gradients are complete.
  const std::int64_t uses = schedule_.uses(unit);
  const std::int64_t once = uses > 0 ? 1 : 0;
  return unit == kRoot ? once : uses + once;
}

std::int64_t Zero3Sharding::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  std::int64_t gathered = 0;  // bytes that this rank owns
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    for (const std::size_t i : list().units[u].parameters) {
      if (owns(i)) gathered += gathers(u) * list().parameters[i].bytes();
    }
  }
  return reduced_bytes() - reduced_owned_bytes() + others * gathered;
}

void register_zero3(train::Registry& registry) {
  registry.add({"zero3", "03_zero3", {"unit", "whole"}, [](const auto& arguments) {
                  return std::make_unique<Zero3Sharding>(arguments);
                }});
}

}  // namespace zero

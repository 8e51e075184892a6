#include "tensor_sharding.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/gradient_destination.hpp>

namespace zero {

using dist::Purpose;

TensorSharding::TensorSharding(const train::StrategyArguments& arguments, bool split)
    : Strategy(arguments,
               arguments.variant == "leaf" ? nn::Granularity::kLeaf : nn::Granularity::kUnit),
      where_(count()),
      by_unit_(list().units.size()) {
  build_groups(arguments.variant == "per_parameter");
  arrived_.assign(groups_.size(), 0);
  for (ShardedGroup& group : groups_) {
    initialize(group, split);
    // Layers of common/zero/nn then write each gradient into its place in the buffer. The reference
    // stays valid: groups_ does not grow any more.
    for (std::size_t m = 0; m < group.members().size(); ++m) {
      nn::set_gradient_provider(parameter(group.members()[m]),
                                [&group, m] { return group.gradient_window(m); });
    }
  }
  broadcast_buffers_from_rank_0();
  shard_optimizer();
}

TensorSharding::~TensorSharding() {
  if (released()) return;
  for (std::size_t i = 0; i < count(); ++i) nn::set_gradient_provider(parameter(i), {});
}

void TensorSharding::build_groups(bool one_per_parameter) {
  std::vector<std::pair<std::size_t, std::vector<std::size_t>>> found;  // unit, members
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    // One buffer has one dtype, and a gradient buffer for frozen parameters would be a waste.
    std::map<std::pair<bool, at::ScalarType>, std::size_t> of_this_unit;
    for (const std::size_t i : list().units[u].parameters) {
      const auto kind = std::make_pair(trainable(i), parameter(i).scalar_type());
      if (one_per_parameter || !of_this_unit.contains(kind)) {
        of_this_unit[kind] = found.size();
        found.push_back({u, {}});
      }
      std::vector<std::size_t>& members = found[of_this_unit[kind]].second;
      where_[i] = {of_this_unit[kind], members.size()};
      members.push_back(i);
    }
  }
  for (auto& [unit, members] : found) {
    by_unit_[unit].push_back(groups_.size());
    groups_.emplace_back(list(), std::move(members), communicator(), average_);
  }
}

void TensorSharding::initialize(ShardedGroup& group, bool split) {
  const int rank = communicator().rank();
  // Parameters that were built with bytes bring their values along.
  std::vector<at::Tensor> own;
  for (const std::size_t i : group.members()) {
    const bool has = memory::has_storage(parameter(i)) && parameter(i).numel() > 0;
    own.push_back(rank == 0 && has ? memory::raw(parameter(i)).clone() : at::Tensor());
  }
  group.allocate();
  for (std::size_t m = 0; rank == 0 && m < own.size(); ++m) {
    at::Tensor out = group.parameter(m);
    own[m].defined() ? static_cast<void>(out.copy_(own[m])) : first_value(group.members()[m], out);
  }
  communicator().broadcast(group.full(), /*root=*/0, Purpose::kSetup).wait();
  // Before the next group is made, so that no rank ever holds more than one of them whole.
  if (split) group.split();
}

train::ParameterShard TensorSharding::piece(std::size_t index) const {
  return groups_[where_[index].group].piece(where_[index].member);
}

train::ParameterShard TensorSharding::local_shard(std::size_t index) const {
  return groups_[where_[index].group].local_shard(where_[index].member);
}

std::size_t TensorSharding::trainable_members(std::size_t group) const {
  const auto& members = groups_[group].members();
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [this](std::size_t i) { return trainable(i); }));
}

void TensorSharding::gradient_ready(std::size_t index) {
  const auto [group, member] = where_[index];
  if (!groups_[group].trainable()) {
    throw Error(
        fmt::format("parameter '{}' was frozen when it was sharded and has a gradient now; "
                    "make the strategy after the last parameter is unfrozen",
                    list().parameters[index].name));
  }
  groups_[group].collect(member);
  if (++arrived_[group] == trainable_members(group)) group_ready(group);
}

bool TensorSharding::note_members(std::size_t group) {
  if (trainable_members(group) == 0) return false;
  for (const std::size_t i : groups_[group].members()) note_used(i, gradient(i).defined());
  return true;
}

void TensorSharding::reduce(std::size_t group, bool keep_full) {
  RECORD_USER_SCOPE("tensor_grad_reduce_scatter");
  if (note_members(group)) groups_[group].reduce_scatter(keep_full);
}

void TensorSharding::zero_grad() {
  for (ShardedGroup& group : groups_) group.drop_gradients();
  forget_arrivals();
  Strategy::zero_grad();
}

std::vector<std::size_t> TensorSharding::backward_groups() const {
  std::vector<std::size_t> order;
  for (std::size_t g = groups_.size(); g-- > 0;) {
    if (groups_[g].trainable()) order.push_back(g);
  }
  return order;
}

std::int64_t TensorSharding::shard_bytes(bool trainable_only) const {
  std::int64_t sum = 0;
  for (const ShardedGroup& group : groups_) {
    if (group.trainable() || !trainable_only) sum += group.shard_bytes();
  }
  return sum;
}

std::int64_t TensorSharding::gradient_shard_bytes() const {
  // A gradient shard lives as long as a piece's `.grad` is a window of it.
  std::vector<bool> held(groups_.size(), false);
  for (std::size_t i = 0; i < count(); ++i) {
    if (piece(i).tensor.defined()) held[where_[i].group] = true;
  }
  std::int64_t sum = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (held[g]) sum += groups_[g].shard_bytes();
  }
  return sum;
}

std::int64_t TensorSharding::reduced_shard_bytes() const {
  std::int64_t sum = 0;
  for (const ShardedGroup& group : groups_) {
    if (!group.trainable()) continue;
    const at::ScalarType dtype = parameter(group.members().front()).scalar_type();
    sum += group.layout().shard() * communicator_.reduced_element_size(dtype, average_.type);
  }
  return sum;
}

// Every rank has updated its shard; the buffer that it is a window of gets the others'. All gathers
// are started before the first is waited for: nothing that one of them writes is read by another.
void TensorSharding::gather_updated() {
  RECORD_USER_SCOPE("tensor_param_all_gather");
  std::vector<dist::Work> pending;
  for (const std::size_t g : backward_groups()) {
    pending.push_back(
        communicator().all_gather(groups_[g].full(), groups_[g].shard(), Purpose::kParameter));
  }
  for (dist::Work& p : pending) p.wait();
}

}  // namespace zero

#include <ATen/record_function.h>

#include <zero/train/registry.hpp>

#include "stages.hpp"

namespace zero {

using dist::Purpose;

namespace {

// Every rank has updated its shard; the buffer that it is a window of gets the others'. All gathers
// are started before the first is waited for: nothing that one of them writes is read by another.
void gather_updated(std::vector<ShardedGroup>& groups, const std::vector<std::size_t>& order,
                    dist::Communicator& communicator) {
  RECORD_USER_SCOPE("tensor_param_all_gather");
  std::vector<dist::Pending> pending;
  for (const std::size_t g : order) {
    pending.push_back(
        communicator.all_gather(groups[g].full(), groups[g].shard(), Purpose::kParameter));
  }
  for (dist::Pending& p : pending) p.wait();
}

}  // namespace

TensorZero1::TensorZero1(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, /*split=*/false),
      naive_(arguments.variant == "naive"),
      reduce_each_(arguments.accumulation == train::Accumulation::kReduceEach) {}

void TensorZero1::finish_backward() {
  forget_arrivals();
  if (!reduces_now()) return;
  for (const std::size_t g : backward_groups()) {
    // Where every micro-batch is reduced, the average must leave the buffer: the next micro-batch
    // writes its gradients there.
    const bool keep_full = !reduce_each_;
    if (naive_) {
      if (note_members(g)) groups()[g].all_reduce(keep_full);
    } else {
      reduce(g, keep_full);
    }
  }
  complete_reduction();
}

void TensorZero1::sync_parameters() { gather_updated(groups(), backward_groups(), communicator()); }

train::ModelStateBytes TensorZero1::predicted_bytes() const {
  const std::int64_t n = communicator_.size();
  return {n * shard_bytes(/*trainable_only=*/false),
          reduce_each_ ? gradient_shard_bytes() : n * shard_bytes(/*trainable_only=*/true),
          optimizer_bytes()};
}

std::int64_t TensorZero1::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  return others * ((naive_ ? 2 : 1) * reduced_shard_bytes() + shard_bytes(/*trainable_only=*/true));
}

TensorZero2::TensorZero2(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, /*split=*/false), order_(backward_groups()) {}

void TensorZero2::group_ready(std::size_t group) {
  // Without a reduction gradients stay in the buffer and the next micro-batch adds to them.
  if (!reduces_now()) return;
  order_.ready(group, [this](std::size_t g) { reduce(g, /*keep_full=*/false); });
}

void TensorZero2::finish_backward() {
  forget_arrivals();
  if (!reduces_now()) return;
  // Groups that this rank's batch did not use in full; other ranks may have.
  order_.finish([this](std::size_t g) { reduce(g, /*keep_full=*/false); });
  complete_reduction();
}

void TensorZero2::zero_grad() {
  order_.forget();  // it is new already, unless a backward pass was given up
  TensorSharding::zero_grad();
}

void TensorZero2::sync_parameters() { gather_updated(groups(), backward_groups(), communicator()); }

train::ModelStateBytes TensorZero2::predicted_bytes() const {
  const std::int64_t n = communicator_.size();
  return {n * shard_bytes(/*trainable_only=*/false), gradient_shard_bytes(), optimizer_bytes()};
}

std::int64_t TensorZero2::predicted_traffic() const {
  return (communicator_.size() - 1) *
         (reduced_shard_bytes() + shard_bytes(/*trainable_only=*/true));
}

// The first variant of each list is the default.
void register_tensor_sharding(train::Registry& registry) {
  const auto add = [&]<typename Stage>(const char* name, std::vector<std::string> variants,
                                       std::type_identity<Stage>) {
    registry.add({name, "04_tensor_sharding", std::move(variants),
                  [](const auto& arguments) { return std::make_unique<Stage>(arguments); }});
  };
  add("tensor_zero1", {"flat", "per_parameter", "naive"}, std::type_identity<TensorZero1>{});
  add("tensor_zero2", {"flat", "per_parameter"}, std::type_identity<TensorZero2>{});
  add("tensor_zero3", {"flat", "per_parameter", "leaf", "whole"},
      std::type_identity<TensorZero3>{});
}

}  // namespace zero

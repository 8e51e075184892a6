#include "zero2_sharding.hpp"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <zero/memory/accounting.hpp>
#include <zero/train/registry.hpp>

namespace zero {

using dist::Purpose;

Zero2Sharding::Zero2Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      during_backward_(arguments.variant != "after"),
      placeholders_(arguments.variant == "placeholder"),
      owners_(list(), communicator(), arguments.ownership),
      schedule_(list(), train::BackwardSchedule::one_by_one(list()),
                {.reduce = [this](std::size_t i) { reduce_to_owner(i); }}) {
  broadcast_from_rank_0();
  shard_optimizer();
}

void Zero2Sharding::gradient_ready(std::size_t index) {
  if (during_backward_) schedule_.gradient_ready(index);
}

void Zero2Sharding::finish_backward() {
  if (!reduces_now()) return;
  // Gradients that never became ready here: another rank may have them, and waits for this one.
  schedule_.reduce_rest();
  complete_reduction();
}

void Zero2Sharding::zero_grad() {
  schedule_.give_up();
  Strategy::zero_grad();
}

void Zero2Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero2_grad_reduce");
  at::Tensor& grad = gradient_to_reduce(index);
  if (placeholders_) {
    reduce_with_placeholders(grad, owners_.of(index));
  } else {
    communicator_.reduce(grad, owners_.of(index), Purpose::kGradient, average_).wait();
  }
  // This is ZeRO-2: once the owner has the average, no other rank needs the gradient.
  if (!owns(index)) drop_gradient(index);
}

void Zero2Sharding::reduce_with_placeholders(at::Tensor& gradient, int owner) {
  const memory::Charge charge(memory::Category::kCommunication);
  const int size = communicator_.size();
  at::Tensor pieces = at::zeros({size, gradient.numel()}, gradient.options());
  pieces.select(0, owner).copy_(gradient.flatten());
  at::Tensor mine = pieces.select(0, communicator_.rank());
  communicator_.reduce_scatter(mine, pieces, Purpose::kGradient, average_).wait();
  if (owner == communicator_.rank()) gradient.copy_(mine.view_as(gradient));
}

void Zero2Sharding::sync_parameters() {
  RECORD_USER_SCOPE("zero2_param_broadcast");
  train::broadcast_from_owners(list(), train::backward_order(list()), owners_, communicator_,
                               Purpose::kParameter);
}

train::ModelStateBytes Zero2Sharding::predicted_bytes() const {
  return {list().bytes(), owners_.trainable_bytes(), optimizer_bytes()};
}

std::int64_t Zero2Sharding::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  const std::int64_t gradients =
      placeholders_ ? others * reduced_bytes() : reduced_bytes() - reduced_owned_bytes();
  return gradients + others * owners_.trainable_bytes();
}

void register_zero2(train::Registry& registry) {
  registry.add({"zero2", "02_zero2", {"during", "after", "placeholder"}, [](const auto& arguments) {
                  return std::make_unique<Zero2Sharding>(arguments);
                }});
}

}  // namespace zero

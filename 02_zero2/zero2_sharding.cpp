#include "zero2_sharding.hpp"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <zero/memory/charge.hpp>
#include <zero/train/registry.hpp>

namespace zero {

using dist::Purpose;

Zero2Sharding::Zero2Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      after_(arguments.variant == "after"),
      placeholders_(arguments.variant == "placeholder"),
      owners_(list(), communicator(), arguments.ownership) {
  broadcast_from_rank_0();
  shard_optimizer();
  if (after_) return;
  reduce_in_backward(train::BackwardSchedule::one_by_one(list()),
                     {.reduce = [this](std::size_t i) { reduce_to_owner(i); }});
}

void Zero2Sharding::finish_backward() {
  if (!reduces_now()) return;
  if (after_) {
    for (const std::size_t i : backward_order()) reduce_to_owner(i);
  }
  Strategy::finish_backward();
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
  train::broadcast_from_owners(list(), backward_order(), owners_, communicator_,
                               Purpose::kParameter);
}

train::Costs Zero2Sharding::costs() const {
  const train::CostSums v(*this);
  const std::int64_t sent_gradients =
      placeholders_ ? v.others * v.reduced : v.reduced - v.own_reduced;
  return {{v.parameters, v.own_trainable, v.optimizer},
          sent_gradients + v.others * v.own_trainable};
}

void register_zero2(train::Registry& registry) {
  registry.add({"zero2", "02_zero2", {"during", "after", "placeholder"}, [](const auto& arguments) {
                  return std::make_unique<Zero2Sharding>(arguments);
                }});
}

}  // namespace zero

#include "zero2_sharding.hpp"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <zero/memory/charge.hpp>
#include <zero/train/cost_sums.hpp>

namespace zero {

using dist::Purpose;

Zero2Sharding::Zero2Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      after_(arguments.variant == "after"),
      placeholders_(arguments.variant == "placeholder"),
      owners_(list(), communicator()) {
  broadcast_first_values();
  shard_optimizer(owners_.placements(list(), communicator()));
  const auto gradients = train::UnitSchedule::one_by_one(list());
  const auto reduce = [this](std::size_t i) { reduce_to_owner(i); };
  after_ ? reduce_after_backward(gradients, reduce) : reduce_in_backward(gradients, reduce);
}

void Zero2Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero2_grad_reduce");
  at::Tensor& grad = gradient_to_reduce(index);
  if (placeholders_) {
    const memory::Charge charge(memory::Category::kCommunication);
    at::Tensor pieces = at::zeros({communicator_.size(), grad.numel()}, grad.options());
    pieces[owners_.of(index)].copy_(grad.flatten());
    at::Tensor mine = pieces[communicator_.rank()];
    communicator_.reduce_scatter(mine, pieces, Purpose::kGradient, average_).wait();
    if (owns(index)) grad.copy_(mine.view_as(grad));
  } else {
    communicator_.reduce(grad, owners_.of(index), Purpose::kGradient, average_).wait();
  }
  // This is ZeRO-2: this rank has sent its gradient, and only the owner needs the average.
  if (!owns(index)) drop_gradient(index);
}

void Zero2Sharding::sync_parameters() {
  RECORD_USER_SCOPE("zero2_param_broadcast");
  // Frozen parameters did not change, so they are not sent.
  train::broadcast_from_owners(list(), backward_order(), owners_, communicator_);
}

train::Costs Zero2Sharding::costs() const {
  const train::CostSums v(*this);
  const std::int64_t sent = placeholders_ ? v.others * v.reduced : v.reduced - v.own_reduced;
  return {{v.parameters, v.own_trainable, v.optimizer}, sent + v.others * v.own_trainable};
}

}  // namespace zero

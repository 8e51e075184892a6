#include "zero1_sharding.hpp"

#include <ATen/record_function.h>

#include <zero/train/cost_sums.hpp>

namespace zero {

using dist::Purpose;

Zero1Sharding::Zero1Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments), naive_(arguments.variant == "naive"), owners_(list(), communicator()) {
  broadcast_first_values();
  // This is ZeRO-1: the optimizer forgets every parameter that another rank owns, so it never makes
  // state for it.
  shard_optimizer(owners_.placements(list(), communicator()));
  const auto gradients = train::UnitSchedule::one_by_one(list());
  const auto reduce = [this](std::size_t i) { reduce_to_owner(i); };
  reduce_after_backward(gradients, reduce);
}

void Zero1Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero1_grad_reduce");
  at::Tensor& grad = gradient_to_reduce(index);
  if (naive_) {
    communicator_.all_reduce(grad, Purpose::kGradient, average_).wait();
  } else {
    // Only the owner will use the average. Sending it to all ranks costs as much traffic again.
    communicator_.reduce(grad, owners_.of(index), Purpose::kGradient, average_).wait();
  }
}

void Zero1Sharding::sync_parameters() {
  RECORD_USER_SCOPE("zero1_param_broadcast");
  // Frozen parameters did not change, so they are not sent.
  train::broadcast_from_owners(list(), backward_order(), owners_, communicator_);
}

train::Costs Zero1Sharding::costs() const {
  const train::CostSums v(*this);
  // If every micro-batch is reduced, a rank adds up only the averages of what it owns.
  const std::int64_t gradients = reduces_each() ? v.own_trainable : v.trainable;
  const std::int64_t sent = naive_ ? v.all_reduced : v.reduced - v.own_reduced;
  return {{v.parameters, gradients, v.optimizer}, sent + v.others * v.own_trainable};
}

}  // namespace zero

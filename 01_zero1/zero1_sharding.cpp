#include "zero1_sharding.hpp"

#include <ATen/record_function.h>

#include <zero/train/registry.hpp>

namespace zero {

using dist::Purpose;

Zero1Sharding::Zero1Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      naive_(arguments.variant == "naive"),
      reduce_each_(arguments.accumulation == train::Accumulation::kReduceEach),
      owners_(list(), communicator(), arguments.ownership) {
  broadcast_from_rank_0();
  // This is ZeRO-1: the optimizer forgets every parameter that another rank owns, so it never makes
  // state for it.
  shard_optimizer();
}

void Zero1Sharding::finish_backward() {
  if (!reduces_now()) return;
  reduce_gradients();
  Strategy::finish_backward();
}

void Zero1Sharding::reduce_gradients() {
  RECORD_USER_SCOPE("zero1_grad_reduce");
  for (const std::size_t i : backward_order()) {
    at::Tensor& grad = gradient_to_reduce(i);
    // Only the owner will use the average. Sending it to all ranks costs as much traffic again.
    if (naive_) {
      communicator_.all_reduce(grad, Purpose::kGradient, average_).wait();
    } else {
      communicator_.reduce(grad, owners_.of(i), Purpose::kGradient, average_).wait();
    }
  }
}

void Zero1Sharding::sync_parameters() {
  RECORD_USER_SCOPE("zero1_param_broadcast");
  // Frozen parameters did not change, so they are not sent.
  train::broadcast_from_owners(list(), backward_order(), owners_, communicator_,
                               Purpose::kParameter);
}

at::Tensor Zero1Sharding::step(const std::function<at::Tensor()>& closure) {
  at::Tensor loss = closure();
  finish_backward();
  optimizer_step();
  sync_parameters();
  return loss;
}

train::Costs Zero1Sharding::costs() const {
  const train::CostSums v(*this);
  // If every micro-batch is reduced, a rank adds up only the averages of what it owns.
  const std::int64_t gradients = reduce_each_ ? v.own_trainable : v.trainable;
  const std::int64_t sent_gradients = naive_ ? v.all_reduced : v.reduced - v.own_reduced;
  return {{v.parameters, gradients, v.optimizer}, sent_gradients + v.others * v.own_trainable};
}

void register_zero1(train::Registry& registry) {
  registry.add({"zero1", "01_zero1", {"owner", "naive"}, [](const auto& arguments) {
                  return std::make_unique<Zero1Sharding>(arguments);
                }});
}

}  // namespace zero

#include "zero3_sharding.hpp"

#include <ATen/record_function.h>

#include <utility>

#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/cost_sums.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero {

using dist::Purpose;

Zero3Sharding::Zero3Sharding(const train::StrategyArguments& arguments)
    : Strategy(arguments),
      whole_model_(arguments.variant == "whole"),
      owners_(list(), communicator()),
      gathered_(list().units.size(), false) {
  train::Placements placements{.of = {}, .group = &communicator()};
  for (std::size_t i = 0; i < count(); ++i) {
    send_first_value(i, owners_.of(i));
    // Keeps the bytes; the parameter uses them while its unit is gathered.
    const at::Tensor mine = owners_.mine(i) ? memory::raw(parameter(i)) : at::Tensor();
    memory::separate_storage(parameter(i), train::unsharded_read(list(), {i}));
    placements.of.push_back({{mine}, {mine}, {mine}});
  }
  broadcast_buffers();
  shard_optimizer(std::move(placements));
  const auto gradients = train::UnitSchedule::one_by_one(list());
  const auto reduce = [this](std::size_t i) { reduce_to_owner(i); };
  // This is ZeRO-3: units are whole only while they run.
  reduce_in_backward(gradients, reduce,
                     whole_model_ ? train::Units::kGatheredOnce : train::Units::kGathered);
}

void Zero3Sharding::reduce_to_owner(std::size_t index) {
  RECORD_USER_SCOPE("zero3_grad_reduce");
  at::Tensor& grad = gradient_to_reduce(index);
  communicator_.reduce(grad, owners_.of(index), Purpose::kGradient, average_).wait();
  // The optimizer holds what this rank updates, not the parameters, so it reads `.grad` there.
  if (owns(index)) placement(index).updated.tensor.mutable_grad() = grad;
  drop_gradient(index);
}

void Zero3Sharding::gather(std::size_t unit, train::Gather /*why*/) {
  if (gathered_[unit]) return;
  RECORD_USER_SCOPE("zero3_param_gather");
  const memory::Charge charge(memory::Category::kParameters);
  const auto& members = list().units[unit].parameters;
  for (const std::size_t i : members) {
    owns(i) ? memory::borrow_storage(parameter(i), placement(i).updated.tensor)
            : memory::allocate_storage(parameter(i));
  }
  train::broadcast_from_owners(list(), members, owners_, communicator_);
  gathered_[unit] = true;
}

void Zero3Sharding::drop(std::size_t unit) {
  if (!gathered_[unit]) return;
  // This is ZeRO-3: the bytes go back to the allocator. Tensors and shapes stay, so that autograd
  // can use the tensors that it has saved once the next gather brings the bytes back.
  for (const std::size_t i : list().units[unit].parameters) {
    memory::release_storage(parameter(i), train::unsharded_read(list(), {i}));
  }
  gathered_[unit] = false;
}

train::Costs Zero3Sharding::costs() const {
  const train::CostSums v(*this);
  std::int64_t gathered = 0;  // bytes that this rank sends to each other rank in gathers
  for (std::size_t i = 0; i < count(); ++i) {
    const nn::Parameter& p = list().parameters[i];
    if (owns(i)) gathered += (whole_model_ ? 1 : gathers(p.unit)) * p.bytes();
  }
  const std::int64_t sent = v.reduced - v.own_reduced;
  return {{v.own_parameters, v.own_trainable, v.optimizer},
          sent + v.others * gathered,
          v.others * gathered};
}

}  // namespace zero

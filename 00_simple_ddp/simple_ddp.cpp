#include "simple_ddp.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include <zero/base/error.hpp>
#include <zero/memory/charge.hpp>
#include <zero/train/cost_sums.hpp>

namespace zero {

SimpleDdp::SimpleDdp(const train::StrategyArguments& arguments)
    : Strategy(arguments), flat_(arguments.variant == "flat") {
  if (flat_) require_one_dtype();
  broadcast_first_values();
}

void SimpleDdp::require_one_dtype() const {
  const nn::Parameter& first = list().parameters.front();
  for (const nn::Parameter& p : list().parameters) {
    if (p.tensor.scalar_type() == first.tensor.scalar_type()) continue;
    throw Error(fmt::format(
        "a flat all-reduce needs one dtype; '{}' is {} and '{}' is {}: take ddp:per_parameter",
        p.name, c10::toString(p.tensor.scalar_type()), first.name,
        c10::toString(first.tensor.scalar_type())));
  }
}

void SimpleDdp::finish_backward() {
  // While micro-batches accumulate, gradients simply add up on each rank. The average of sums is
  // the sum of averages, so one reduction at the end is enough.
  if (!reduces_now()) return;
  flat_ ? average_flat() : average_one_by_one();
  Strategy::finish_backward();
}

void SimpleDdp::average_one_by_one() {
  RECORD_USER_SCOPE("ddp_grad_all_reduce");
  for (const std::size_t i : backward_order()) average(gradient_to_reduce(i));
}

void SimpleDdp::average(const at::Tensor& gradient) {
  communicator_.all_reduce(gradient, dist::Purpose::kGradient, average_).wait();
}

void SimpleDdp::average_flat() {
  RECORD_USER_SCOPE("ddp_grad_all_reduce");
  std::vector<at::Tensor> grads;
  for (const std::size_t i : backward_order()) grads.push_back(gradient_to_reduce(i));
  at::Tensor buffer;
  {
    const memory::Charge charge(memory::Category::kCommunication);
    buffer = torch::utils::flatten_dense_tensors(grads);
  }
  average(buffer);
  const auto averages = torch::utils::unflatten_dense_tensors(buffer, grads);
  for (std::size_t k = 0; k < grads.size(); ++k) grads[k].copy_(averages[k]);
}

train::Costs SimpleDdp::costs() const {
  const train::CostSums v(*this);
  std::int64_t sent = v.all_reduced;
  if (flat_) {
    const std::int64_t element =
        communicator_.reduced_element_size(parameter(0).scalar_type(), average_.type);
    sent = dist::all_reduce_bytes(v.reduced / element, element, communicator_.rank(),
                                  communicator_.size());
  }
  return {{v.parameters, v.trainable, v.optimizer}, sent};
}

}  // namespace zero

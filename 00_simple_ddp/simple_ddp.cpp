#include "simple_ddp.hpp"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/train/owners.hpp>
#include <zero/train/registry.hpp>

namespace zero {

using dist::Purpose;

SimpleDdp::SimpleDdp(const train::StrategyArguments& arguments)
    : Strategy(arguments), flat_(arguments.variant == "flat") {
  if (flat_) require_one_dtype();
  broadcast_from_rank_0();
  gradient_sync_ = [](SimpleDdp& ddp) {
    ddp.flat_ ? ddp.average_flat() : ddp.average_one_by_one();
  };
}

void SimpleDdp::require_one_dtype() const {
  const nn::Parameter& first = list().parameters.front();
  for (const nn::Parameter& p : list().parameters) {
    if (p.tensor.scalar_type() == first.tensor.scalar_type()) continue;
    throw Error(fmt::format(
        "one flat all-reduce needs one dtype, and '{}' is {} where '{}' is {}: take the variant "
        "'per_parameter'",
        p.name, c10::toString(p.tensor.scalar_type()), first.name,
        c10::toString(first.tensor.scalar_type())));
  }
}

at::Tensor SimpleDdp::forward(const data::Batch& batch) {
  if (before_forward_) before_forward_(*this);
  return Strategy::forward(batch);
}

void SimpleDdp::finish_backward() {
  // While micro-batches accumulate, gradients simply add up on each rank. The average of sums is
  // the sum of averages, so one reduction at the end is enough.
  if (!reduces_now()) return;
  gradient_sync_(*this);
  complete_reduction();
}

void SimpleDdp::average_one_by_one() {
  RECORD_USER_SCOPE("ddp_grad_all_reduce");
  for (const std::size_t i : train::backward_order(list())) {
    communicator_.all_reduce(gradient_to_reduce(i), Purpose::kGradient, average_).wait();
  }
}

void SimpleDdp::average_flat() {
  RECORD_USER_SCOPE("ddp_grad_all_reduce");
  std::vector<at::Tensor> grads;
  for (const std::size_t i : train::backward_order(list())) grads.push_back(gradient_to_reduce(i));
  at::Tensor buffer;
  {
    const memory::Charge charge(memory::Category::kCommunication);
    std::vector<at::Tensor> flat;
    for (const at::Tensor& grad : grads) flat.push_back(grad.flatten());
    buffer = at::cat(flat);
  }
  communicator_.all_reduce(buffer, Purpose::kGradient, average_).wait();
  std::int64_t offset = 0;
  for (at::Tensor& grad : grads) {
    grad.copy_(buffer.narrow(0, offset, grad.numel()).view_as(grad));
    offset += grad.numel();
  }
}

train::ModelStateBytes SimpleDdp::predicted_bytes() const {
  const std::int64_t trainable = trainable_bytes();
  return {list().bytes(), trainable, optimizer_bytes()};
}

std::int64_t SimpleDdp::predicted_traffic() const {
  std::int64_t elements = 0;
  std::int64_t sum = 0;
  std::int64_t element_size = 0;
  const auto bytes_of = [&](std::int64_t n) {
    return dist::Communicator::all_reduce_bytes(n, element_size, communicator_.rank(),
                                                communicator_.size());
  };
  for (const std::size_t i : train::backward_order(list())) {
    element_size = communicator_.reduced_element_size(parameter(i).scalar_type(), average_.type);
    elements += parameter(i).numel();
    sum += bytes_of(parameter(i).numel());
  }
  return flat_ ? bytes_of(elements) : sum;
}

void register_simple_ddp(train::Registry& registry) {
  registry.add({"ddp", "00_simple_ddp", {"per_parameter", "flat"}, [](const auto& arguments) {
                  return std::make_unique<SimpleDdp>(arguments);
                }});
}

}  // namespace zero

#include "simple_ddp.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include <algorithm>
#include <charconv>

#include <zero/base/error.hpp>
#include <zero/memory/charge.hpp>
#include <zero/train/registry.hpp>

namespace zero {

using dist::Purpose;

namespace {

constexpr std::string_view kShardSize = "shard_size=";

// S of "shard_size=S"; "host" stands for the ranks of a host.
std::int64_t shard_size_of(std::string_view variant) {
  const std::string_view text = variant.substr(std::min(kShardSize.size(), variant.size()));
  if (variant.starts_with(kShardSize) && text == "host") return dist::Mesh::kRanksOfHost;
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (!variant.starts_with(kShardSize) || error != std::errc() || size < 1 ||
      end != text.data() + text.size()) {
    throw Error(fmt::format(
        "ddp:{}: the only option is shard_size=S, \"host\" or a number of ranks from 1", variant));
  }
  return size;
}

std::unique_ptr<dist::Mesh> mesh_of(const train::StrategyArguments& arguments) {
  if (!arguments.variant.starts_with(kShardSize)) return nullptr;
  return std::make_unique<dist::Mesh>(arguments.communicator,
                                      dist::data_axes(shard_size_of(arguments.variant)));
}

}  // namespace

SimpleDdp::SimpleDdp(const train::StrategyArguments& arguments)
    : Strategy(arguments), flat_(arguments.variant == "flat"), mesh_(mesh_of(arguments)) {
  if (flat_) require_one_dtype();
  broadcast_from_rank_0();
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
  if (mesh_ != nullptr) return mesh_->average(gradient, Purpose::kGradient, average_.type);
  communicator_.all_reduce(gradient, Purpose::kGradient, average_).wait();
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
  communicator_.all_reduce(buffer, Purpose::kGradient, average_).wait();
  const auto averages = torch::utils::unflatten_dense_tensors(buffer, grads);
  for (std::size_t k = 0; k < grads.size(); ++k) grads[k].copy_(averages[k]);
}

train::Costs SimpleDdp::costs() const {
  const train::CostSums v(*this);
  std::int64_t sent = v.all_reduced;
  if (flat_) {
    const std::int64_t element =
        communicator_.reduced_element_size(parameter(0).scalar_type(), average_.type);
    sent = dist::Communicator::all_reduce_bytes(v.reduced / element, element, communicator_.rank(),
                                                communicator_.size());
  }
  if (mesh_ != nullptr) sent = 0;
  for (std::size_t i = 0; mesh_ != nullptr && i < count(); ++i) {
    if (!trainable(i)) continue;
    sent += mesh_->average_bytes(
        parameter(i).numel(),
        communicator_.reduced_element_size(parameter(i).scalar_type(), average_.type));
  }
  return {{v.parameters, v.trainable, v.optimizer}, sent};
}

void register_simple_ddp(train::Registry& registry) {
  registry.add({"ddp",
                "00_simple_ddp",
                {"per_parameter", "flat"},
                [](const auto& arguments) { return std::make_unique<SimpleDdp>(arguments); },
                [](const std::string& variant) { shard_size_of(variant); }});
}

}  // namespace zero

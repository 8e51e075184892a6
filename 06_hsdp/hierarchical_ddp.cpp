#include "hierarchical_ddp.hpp"

#include <fmt/format.h>

#include <charconv>

#include <zero/base/error.hpp>

namespace zero {

std::int64_t HierarchicalDdp::shard_size_of(std::string_view variant) {
  constexpr std::string_view kOption = "shard_size=";
  const bool has_option = variant.starts_with(kOption);
  const std::string_view text = has_option ? variant.substr(kOption.size()) : variant;
  if (text == (has_option ? "host" : "by_host")) return dist::Mesh::kRanksOfHost;
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (!has_option || error != std::errc() || size < 1 || end != text.data() + text.size()) {
    throw Error(fmt::format(
        "hddp:{}: the only option is shard_size=S, \"host\" or a number of ranks from 1", variant));
  }
  return size;
}

void HierarchicalDdp::average(const at::Tensor& gradient) {
  mesh_.average(gradient, dist::Purpose::kGradient, average_.type);
}

train::Costs HierarchicalDdp::costs() const {
  train::Costs costs = SimpleDdp::costs();
  costs.sent = 0;
  for (const std::size_t i : backward_order()) {
    const at::ScalarType dtype = parameter(i).scalar_type();
    costs.sent += mesh_.average_bytes(parameter(i).numel(),
                                      communicator_.reduced_element_size(dtype, average_.type));
  }
  return costs;
}

}  // namespace zero

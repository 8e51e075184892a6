#include "hierarchical_ddp.hpp"

#include <zero/memory/charge.hpp>

namespace zero {

using dist::Reduction;

void HierarchicalDdp::average(const at::Tensor& gradient) {
  dist::Communicator &inside = mesh_.along("shard"), &between = mesh_.along("replica");
  if (inside.size() == 1 || between.size() == 1) return SimpleDdp::average(gradient);
  at::Tensor sum = gradient;
  if (average_.type == dist::ReduceType::kFloat32 &&
      at::isReducedFloatingType(gradient.scalar_type())) {
    // Sums of two bytes stay in float32 on their way.
    const memory::Charge charge(memory::Category::kCommunication);
    sum = gradient.detach().to(at::kFloat);
  }
  const auto purpose = dist::Purpose::kGradient;
  inside.all_reduce(sum, purpose, {dist::ReduceOp::kSum, average_.type}).wait();
  const int ranks = inside.size() * between.size();
  between.all_reduce(gradient, sum, purpose, Reduction::average_of_sums(ranks, average_.type))
      .wait();
}

train::Costs HierarchicalDdp::costs() const {
  train::Costs costs = SimpleDdp::costs();
  costs.sent = 0;
  for (const std::size_t i : backward_order()) {
    const std::int64_t element =
        communicator_.reduced_element_size(parameter(i).scalar_type(), average_.type);
    for (const auto* group : {&mesh_.along("shard"), &mesh_.along("replica")}) {
      costs.sent +=
          dist::all_reduce_bytes(parameter(i).numel(), element, group->rank(), group->size());
    }
  }
  return costs;
}

}  // namespace zero

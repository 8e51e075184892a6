#include "hierarchical_ddp.hpp"

namespace zero {

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

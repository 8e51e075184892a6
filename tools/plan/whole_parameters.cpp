#include "whole_parameters.hpp"

#include <algorithm>
#include <numeric>

namespace zero::plan {

std::vector<std::int64_t> owned_elements(const std::vector<TensorSize>& tensors, int world_size,
                                         train::Ownership ownership) {
  std::vector<std::int64_t> sizes;
  for (const TensorSize& tensor : tensors) sizes.push_back(tensor.elements);
  const std::vector<int> owners = train::assign_owners(sizes, world_size, ownership);
  std::vector<std::int64_t> owned(static_cast<std::size_t>(world_size), 0);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    owned[static_cast<std::size_t>(owners[i])] += sizes[i];
  }
  return owned;
}

double largest_over_mean(const std::vector<TensorSize>& tensors, int world_size,
                         train::Ownership ownership) {
  const std::vector<std::int64_t> owned = owned_elements(tensors, world_size, ownership);
  const std::int64_t all = std::accumulate(owned.begin(), owned.end(), std::int64_t{0});
  return static_cast<double>(*std::max_element(owned.begin(), owned.end())) * world_size /
         static_cast<double>(all);
}

States largest_states(const std::vector<TensorSize>& tensors, const Policy& policy, Stage stage,
                      int world_size, train::Ownership ownership) {
  const std::vector<std::int64_t> owned = owned_elements(tensors, world_size, ownership);
  const std::int64_t all = std::accumulate(owned.begin(), owned.end(), std::int64_t{0});
  const std::int64_t most = *std::max_element(owned.begin(), owned.end());
  const States whole = states_at_limit(all, policy, stage);
  const States shared = model_states(most, policy, Stage::kDdp, 1);
  return {stage >= Stage::kZero3 ? shared.parameters : whole.parameters,
          stage >= Stage::kZero2 ? shared.gradients : whole.gradients,
          stage >= Stage::kZero1 ? shared.optimizer : whole.optimizer};
}

std::int64_t elements_sharded_by_rows(const std::vector<TensorSize>& tensors, int world_size) {
  std::int64_t sum = 0;
  for (const TensorSize& tensor : tensors) {
    if (tensor.elements == 0) continue;
    sum += (tensor.rows + world_size - 1) / world_size * (tensor.elements / tensor.rows);
  }
  return sum;
}

}  // namespace zero::plan

#pragma once

#include <vector>

#include <zero/train/strategy.hpp>

namespace zero::testing {

/// Copies of all weights, whole, in registration order. Called by all ranks.
inline std::vector<at::Tensor> whole_weights(train::Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  std::vector<at::Tensor> copies(list.size());
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : list.units[u].parameters) {
      copies[i] = list.parameters[i].tensor.detach().clone();
    }
  }
  return copies;
}

}  // namespace zero::testing

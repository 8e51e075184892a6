#pragma once

#include <vector>

#include <zero/train/strategy.hpp>
#include <zero/train/unsharded_parameters.hpp>

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

/// What follows backward() in a step.
inline void finish_step(train::Strategy& strategy) {
  strategy.finish_backward();
  strategy.optimizer_step();
  strategy.sync_parameters();
}

/// The parameters of a model that no strategy has, in the same order.
inline std::vector<at::Tensor> parameters_of(torch::nn::Module& model) {
  std::vector<at::Tensor> tensors;
  for (const nn::Parameter& p : nn::list_parameters(model).parameters) tensors.push_back(p.tensor);
  return tensors;
}

}  // namespace zero::testing

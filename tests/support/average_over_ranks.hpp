#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace zero::testing {

/// For a model in one process that is the measure of several ranks: leaves in `.grad` of each of
/// `parameters` the average, in rank order, of what backward(rank) adds there; undefined where no
/// rank has a gradient.
inline void average_over_ranks(const std::vector<at::Tensor>& parameters, int ranks,
                               const std::function<void(int rank)>& backward) {
  std::vector<at::Tensor> sums(parameters.size());
  for (int rank = 0; rank < ranks; ++rank) {
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
    backward(rank);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor mine = parameters[i].grad();
      if (mine.defined()) sums[i] = sums[i].defined() ? sums[i] + mine : mine;
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = sums[i].defined() ? sums[i] / ranks : at::Tensor();
  }
}

}  // namespace zero::testing

#pragma once

#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <zero/optim/optimizer.hpp>

namespace zero::testing {

/// The measure of an engine: a plain model in one process, trained on the batches of all ranks. A
/// backward for each, gradients averaged in rank order, one optimizer over everything.
class PlainRanks {
 public:
  PlainRanks(const std::vector<at::Tensor>& parameters, int ranks,
             const optim::OptimizerFactory& optimizer)
      : parameters_(parameters),
        gradients_(static_cast<std::size_t>(ranks), std::vector<at::Tensor>(parameters.size())),
        optimizer_(optimizer(parameters)) {}

  /// Of a micro-batch of each rank.
  void backward(const std::function<at::Tensor(int rank)>& loss) {
    for (std::size_t r = 0; r < gradients_.size(); ++r) {
      swap_gradients(gradients_[r]);
      loss(static_cast<int>(r)).backward();
      swap_gradients(gradients_[r]);
    }
  }

  /// From now on the parameters have the averages of all that backward() has added up.
  void average() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor sum = sum_of(i);
      if (!sum.defined()) continue;
      parameters_[i].mutable_grad() =
          (sum / static_cast<std::int64_t>(gradients_.size())).to(parameters_[i].scalar_type());
    }
  }
  void update() {
    optimizer_->step();
    for (const at::Tensor& p : parameters_) p.mutable_grad().reset();
  }
  void step() {
    average();
    update();
  }
  optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  void swap_gradients(std::vector<at::Tensor>& of_rank) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      std::swap(parameters_[i].mutable_grad(), of_rank[i]);
    }
  }
  // In float32 at least.
  at::Tensor sum_of(std::size_t i) {
    at::Tensor sum;
    for (std::vector<at::Tensor>& of_rank : gradients_) {
      const at::Tensor gradient = std::exchange(of_rank[i], {});
      if (!gradient.defined()) continue;
      const at::Tensor wide = gradient.itemsize() < 4 ? gradient.to(at::kFloat) : gradient;
      sum = sum.defined() ? sum + wide : wide;
    }
    return sum;
  }

  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<at::Tensor>> gradients_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

}  // namespace zero::testing

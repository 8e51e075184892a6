#include "zero/optim/torch_optimizer.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "zero/memory/accounting.hpp"

namespace zero::optim {
namespace {

template <typename State>
bool adam_state(const torch::optim::OptimizerParamState& state, std::int64_t& steps,
                std::map<std::string, at::Tensor>& tensors) {
  const auto* adam = dynamic_cast<const State*>(&state);
  if (adam == nullptr) return false;
  steps = adam->step();
  tensors = {{"exp_avg", adam->exp_avg().flatten()}, {"exp_avg_sq", adam->exp_avg_sq().flatten()}};
  return true;
}

class TorchOptimizer final : public Optimizer {
 public:
  explicit TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {}

  void step() override {
    const memory::Charge charge(memory::Category::kOptimizer);
    optimizer_->step();
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
      for (at::Tensor& p : group.params()) {
        const at::Tensor other = with(p);
        if (other.is_same(p)) continue;
        optimizer_->state().erase(p.unsafeGetTensorImpl());
        p = other;
      }
      std::erase_if(group.params(), [](const at::Tensor& p) { return !p.defined(); });
    }
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    return look_up(parameter).second;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    return look_up(parameter).first;
  }

  void set_learning_rate(double rate) override {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
  }

 private:
  std::pair<std::int64_t, std::map<std::string, at::Tensor>> look_up(
      const at::Tensor& parameter) const {
    std::pair<std::int64_t, std::map<std::string, at::Tensor>> result{0, {}};
    const auto found = optimizer_->state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer_->state().end()) return result;
    const torch::optim::OptimizerParamState& state = *found->second;
    if (adam_state<torch::optim::AdamParamState>(state, result.first, result.second)) return result;
    if (adam_state<torch::optim::AdamWParamState>(state, result.first, result.second))
      return result;
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
      result.second = {{"momentum_buffer", sgd->momentum_buffer().flatten()}};
    }
    return result;
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer) {
  return std::make_unique<TorchOptimizer>(std::move(optimizer));
}

}  // namespace zero::optim

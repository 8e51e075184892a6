#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <ranges>
#include <utility>
#include <vector>

#include <zero/nn/before_backward.hpp>

namespace zero::nn {
namespace {

struct Callbacks final : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    for (const auto& callback : functions | std::views::reverse) callback();
    return gradients;
  }
  std::vector<std::function<void()>> functions;
};

}  // namespace

void before_backward(const at::TensorBase& x, std::function<void()> callback) {
  const auto node = x.grad_fn();
  for (const auto& hook : node->pre_hooks()) {
    if (auto* const callbacks = dynamic_cast<Callbacks*>(hook.get())) {
      return callbacks->functions.push_back(std::move(callback));
    }
  }
  auto callbacks = std::make_unique<Callbacks>();
  callbacks->functions.push_back(std::move(callback));
  node->add_pre_hook(std::move(callbacks));
}

}  // namespace zero::nn

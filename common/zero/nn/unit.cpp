#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <utility>

#include <zero/nn/unit.hpp>

namespace zero::nn {

at::Tensor Unit::run(const std::function<at::Tensor()>& body,
                     const std::vector<at::Tensor>& inputs) {
  return run_many([&] { return std::vector<at::Tensor>{body()}; }, inputs).front();
}

std::vector<at::Tensor> Unit::run_many(const std::function<std::vector<at::Tensor>()>& body,
                                       const std::vector<at::Tensor>& inputs) {
  if (hooks_ == nullptr) return body();
  hooks_->pre_forward(*this);
  std::vector<at::Tensor> outputs = body();
  hooks_->post_forward(*this);
  if (c10::GradMode::is_enabled()) {
    watch_outputs(outputs);
    watch_inputs(inputs);
  }
  return outputs;
}

at::Tensor Leaf::run_leaf(const at::Tensor& input,
                          const std::function<at::Tensor(const at::Tensor&)>& body) {
  if (hooks() == nullptr) return body(input);
  // The gradient of `input` is known when all who read it are done; that of a view which nobody
  // else reads, when this use is.
  const bool watched = c10::GradMode::is_enabled() && input.requires_grad();
  const at::Tensor own = watched ? input.view_as(input) : input;
  return run([&] { return body(own); }, {own});
}

void Unit::watch_outputs(std::vector<at::Tensor>& outputs) {
  // Shared by the outputs of this one use of the unit: its backward begins once.
  auto begun = std::make_shared<bool>(false);
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    // What the body returned may be the output of a unit within, or an input, whose hooks would
    // come first. A view is newer than both.
    output = output.view_as(output);
    // The hook returns nothing: the gradient goes on unchanged.
    output.register_hook([this, begun](const at::Tensor&) {
      if (!std::exchange(*begun, true) && hooks_ != nullptr) hooks_->pre_backward(*this);
    });
  }
}

void Unit::watch_inputs(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> watched;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) watched.push_back(input);
  }
  // Shared by the hooks of this one use of the unit, because it may be used again before backward.
  auto missing = std::make_shared<std::size_t>(watched.size());
  for (const at::Tensor& input : watched) {
    input.register_hook([this, missing](const at::Tensor&) {
      if (--*missing == 0 && hooks_ != nullptr) hooks_->post_backward(*this);
    });
  }
}

}  // namespace zero::nn

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include <zero/nn/unit.hpp>

namespace zero::nn {
namespace {

struct Watch : torch::CustomClassHolder {
  std::function<void()> callback;
};

// A tensor with the same bytes and version counter: autograd notices if a saved original is changed
// in place through it. It is not a view, because such a view could not be changed in place.
at::Tensor same_tensor(const at::Tensor& x) {
  c10::TensorImpl* const impl = x.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// Returns its input and calls back when the gradient is known. `is_shared`: returns a view, and
// autograd refuses to change that in place.
struct WatchFunction : torch::autograd::Function<WatchFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Watch>& watch, bool is_shared) {
    context->set_materialize_grads(false);
    context->saved_data["watch"] = c10::IValue::make_capsule(watch);
    return is_shared ? x.view_as(x) : same_tensor(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder = context->saved_data["watch"].toCapsule();
    static_cast<const Watch&>(*holder).callback();
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

// Which outputs share bytes with another output, an input, or something that outlives the body.
std::vector<bool> shared_outputs(const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& inputs) {
  std::vector<bool> shared(outputs.size(), false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    if (!output.defined()) continue;
    const auto has_bytes = [&](const at::Tensor& x) {
      return x.defined() && x.is_alias_of(output);
    };
    const bool of_a_leaf = output.is_view() ? output._base().is_leaf() : output.is_leaf();
    shared[i] = of_a_leaf || std::ranges::any_of(inputs, has_bytes) ||
                std::ranges::count_if(outputs, has_bytes) > 1;
  }
  return shared;
}

}  // namespace

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
    watch_outputs(outputs, inputs);
    watch_inputs(inputs);
  }
  return outputs;
}

void Unit::watch_outputs(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  // Shared by the outputs of this one use of the unit: its backward begins once in a pass.
  const auto pass = std::make_shared<OnceInAPass>();
  const std::vector<bool> shared = shared_outputs(outputs, inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].requires_grad()) {
      outputs[i] = watched(outputs[i], pass, shared[i]);
    }
  }
}

at::Tensor Unit::watched(const at::Tensor& output, const std::shared_ptr<OnceInAPass>& pass,
                         bool is_shared) {
  // A separate autograd node: the body's result may be the output of an inner unit, whose node
  // comes later; and a view's hook is lost if the view is changed in place.
  const auto watch = c10::make_intrusive<Watch>();
  watch->callback = [this, pass] {
    if (pass->first() && hooks_ != nullptr) hooks_->pre_backward(*this);
  };
  return WatchFunction::apply(output, watch, is_shared);
}

void Unit::watch_inputs(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    input.register_hook([this](const at::Tensor& gradient) -> at::Tensor {
      if (hooks_ == nullptr || !c10::GradMode::is_enabled()) return {};
      if (!gradient.defined() || !gradient.requires_grad()) return {};
      // A graph recorded by this backward starts its own backward here.
      hooks_->records_backward(*this);
      return watched(gradient, std::make_shared<OnceInAPass>(), /*is_shared=*/false);
    });
  }
}

}  // namespace zero::nn

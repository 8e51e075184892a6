#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include <zero/nn/functional.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/nn/once_differentiable.hpp>

namespace zero::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [..., n] as a matrix of rows.
at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// The functions below return what the backward function returns for the parameter.

// A parameter that was frozen since its forward gets no gradient, as in ordinary autograd; its
// hooks are called there, too.
bool is_frozen(const at::Tensor& parameter) {
  return !parameter.requires_grad() && !goes_to_autograd(parameter);
}

// The gradient of a bias or a norm is the sum of the rows: adds it, or overwrites if fresh.
at::Tensor accumulate_sum(const at::Tensor& parameter, const at::Tensor& matrix) {
  if (is_frozen(parameter)) return {};
  GradientDestination destination = gradient_destination(parameter);
  if (destination.fresh) {
    at::sum_out(destination.tensor, matrix, at::IntArrayRef{0}, /*keepdim=*/false);
  } else {
    destination.tensor.add_(at::sum(matrix, 0));
  }
  return destination.to_autograd;
}

struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, weight, bias.value_or(at::Tensor())});
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("linear");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const at::Tensor gradient = rows(gradients[0]);
    at::Tensor to_x, to_weight, to_bias;
    if (context->needs_input_grad(1)) to_weight = accumulate_linear(weight, gradient, rows(x));
    if (bias.defined() && context->needs_input_grad(2)) to_bias = accumulate_sum(bias, gradient);
    if (context->needs_input_grad(0)) to_x = gradient.mm(weight).view(x.sizes());
    return {to_x, to_weight, to_bias};
  }
};

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight) {
    context->save_for_backward({ids, weight});
    std::vector<std::int64_t> sizes = ids.sizes().vec();
    sizes.push_back(weight.size(1));
    return weight.index_select(0, ids.reshape(-1)).view(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("embedding");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &ids = saved[0], &weight = saved[1];
    at::Tensor to_weight;
    if (context->needs_input_grad(1)) to_weight = accumulate_embedding(ids, weight, gradients[0]);
    return {at::Tensor(), to_weight};
  }
};

// Whether LibTorch has one kernel for this norm, and one for its gradients.
bool is_fused(const at::Tensor& x, const at::Tensor& weight) {
  return !x.is_cpu() && x.scalar_type() == weight.scalar_type();
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    if (is_fused(x, weight)) {
      const auto [normal, inverse] = at::_fused_rms_norm(x, {x.size(-1)}, weight, eps);
      context->save_for_backward({x, weight, inverse});
      return normal;
    }
    const at::Tensor wide_x = x.to(at::toOpMathType(x.scalar_type()));
    const at::Tensor inverse =
        wide_x.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();  // [..., 1]
    context->save_for_backward({x, weight, inverse});
    return (wide_x * inverse).to(x.scalar_type()).mul_(weight);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
    const at::Tensor gradient = gradients[0];
    if (is_fused(x, weight)) {
      auto [to_x, to_weight] = at::_fused_rms_norm_backward(
          gradient, x, {x.size(-1)}, inverse, weight,
          {context->needs_input_grad(0), context->needs_input_grad(1)});
      if (to_weight.defined()) to_weight = accumulate_sum(weight, to_weight.unsqueeze(0));
      return {to_x, to_weight, at::Tensor()};
    }
    const at::Tensor normal = x.to(inverse.scalar_type()) * inverse;
    at::Tensor to_x, to_weight;
    if (context->needs_input_grad(1)) {
      to_weight = accumulate_sum(weight, rows(gradient * normal.to(x.scalar_type())));
    }
    if (context->needs_input_grad(0)) {
      // d(x/rms) = inverse (h - normal mean(h normal)) for a gradient h of the normalised rows.
      const at::Tensor h = (gradient * weight).to(inverse.scalar_type());
      const at::Tensor along = (h * normal).mean(-1, /*keepdim=*/true);
      to_x = h.addcmul(normal, along, /*value=*/-1).mul_(inverse).to(x.scalar_type());
    }
    return {to_x, to_weight, at::Tensor()};
  }
};

struct SwigluFunction : Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("swiglu");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &gradient = gradients[0];
    at::Tensor to_gate, to_up;
    if (context->needs_input_grad(1)) to_up = at::silu(gate).mul_(gradient);
    if (context->needs_input_grad(0)) to_gate = at::silu_backward(gradient * up, gate);
    return {to_gate, to_up};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  // Autocast multiplies copies of other types, and its own backward converts gradients back.
  if (at::autocast::is_autocast_enabled(x.device().type())) return at::linear(x, weight, bias);
  // An undefined tensor cannot be an argument of a Function, an empty optional can.
  return LinearFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

at::Tensor accumulate_linear(const at::Tensor& weight, const at::Tensor& gradient,
                             const at::Tensor& x) {
  if (is_frozen(weight)) return {};
  GradientDestination destination = gradient_destination(weight);
  if (destination.fresh) {
    at::mm_out(destination.tensor, gradient.t(), x);
  } else {
    destination.tensor.addmm_(gradient.t(), x);
  }
  return destination.to_autograd;
}

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight) {
  return EmbeddingFunction::apply(ids, weight);
}

at::Tensor accumulate_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                const at::Tensor& gradient) {
  if (is_frozen(weight)) return {};
  GradientDestination destination = gradient_destination(weight);
  if (destination.fresh) destination.tensor.zero_();
  destination.tensor.index_add_(0, ids.reshape(-1), rows(gradient));
  return destination.to_autograd;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluFunction::apply(gate, up);
}

}  // namespace zero::nn

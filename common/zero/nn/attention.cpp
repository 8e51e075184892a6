#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include <zero/memory/accounting.hpp>
#include <zero/nn/attention.hpp>
#include <zero/nn/once_differentiable.hpp>

namespace zero::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Turns by the angle with this cosine and sine [S, half]; direction -1 turns back.
at::Tensor turn(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                int direction) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor c = cosine.unsqueeze(1), s = sine.unsqueeze(1);  // [S, 1, half]
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  at::Tensor out = at::empty(x.sizes(), x.options());
  at::Tensor out_first = out.narrow(-1, 0, half), out_second = out.narrow(-1, half, half);
  at::mul_out(out_first, first, c).addcmul_(second, s, /*value=*/-direction);
  at::mul_out(out_second, second, c).addcmul_(first, s, /*value=*/direction);
  return out;
}

struct RotateFunction : Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return turn(x, cosine, sine, 1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("rotate");
    const variable_list saved = context->get_saved_variables();
    return {turn(gradients[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

// Repeats every key or value head for the query heads that read it: [B, H, S, D] to
// [B, H times, S, D].
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t times) {
  if (times == 1) return x;
  return x.unsqueeze(2).expand({-1, -1, times, -1, -1}).flatten(1, 2);
}

}  // namespace

RotaryTable rotary_table(std::int64_t length, std::int64_t head_size, double theta,
                         at::ScalarType dtype, at::Device device) {
  const memory::Charge charge(memory::Category::kOther);
  const at::NoGradGuard no_grad;
  // Computed on `device`: copying it from the host would make a GPU's host wait.
  const auto options =
      at::TensorOptions(dtype == at::kDouble ? at::kDouble : at::kFloat).device(device);
  const at::Tensor exponents = at::arange(0, head_size, 2, options) / head_size;
  const at::Tensor frequencies = at::pow(theta, exponents).reciprocal();
  const at::Tensor angles = at::outer(at::arange(length, options), frequencies);
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) {
  const std::int64_t length = x.size(1);
  return RotateFunction::apply(x, table.cosine.narrow(0, 0, length),
                               table.sine.narrow(0, 0, length));
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) {
  const std::int64_t times = query.size(2) / key.size(2);
  return at::scaled_dot_product_attention(query.transpose(1, 2),
                                          repeat_heads(key.transpose(1, 2), times),
                                          repeat_heads(value.transpose(1, 2), times),
                                          /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0,
                                          /*is_causal=*/true)
      .transpose(1, 2);
}

}  // namespace zero::nn

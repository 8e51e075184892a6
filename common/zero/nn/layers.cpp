#include <zero/nn/functional.hpp>
#include <zero/nn/layers.hpp>

namespace zero::nn {

Linear::Linear(std::int64_t in, std::int64_t out, Initializer weight,
               std::optional<Initializer> bias, at::ScalarType dtype,
               const TensorPlacement& placement)
    : weight_(add_parameter("weight", {out, in}, weight, dtype, placement)) {
  if (bias) bias_ = add_parameter("bias", {out}, *bias, dtype, placement);
}

Linear::Linear(std::int64_t in, std::int64_t out, Initializer weight, at::ScalarType dtype)
    : Linear(in, out, weight, std::nullopt, dtype, {}) {}

Linear::Linear(std::int64_t in, std::int64_t out, Initializer weight, Initializer bias,
               at::ScalarType dtype)
    : Linear(in, out, weight, std::optional(bias), dtype, {}) {}

at::Tensor Linear::forward(const at::Tensor& x) { return nn::linear(x, weight_, bias_); }

ColumnParallelLinear::ColumnParallelLinear(std::int64_t in, std::int64_t out, Initializer weight,
                                           const TensorParallel& tensor, at::ScalarType dtype)
    : Linear(in, out, weight, std::nullopt, dtype, tensor.cut(0)) {}

ColumnParallelLinear::ColumnParallelLinear(std::int64_t in, std::int64_t out, Initializer weight,
                                           Initializer bias, const TensorParallel& tensor,
                                           at::ScalarType dtype)
    : Linear(in, out, weight, std::optional(bias), dtype, tensor.cut(0)) {}

RowParallelLinear::RowParallelLinear(std::int64_t in, std::int64_t out, Initializer weight,
                                     const TensorParallel& tensor, at::ScalarType dtype)
    : Linear(in, out, weight, std::nullopt, dtype, tensor.cut(1)), tensor_(tensor) {}

at::Tensor RowParallelLinear::forward(const at::Tensor& x) {
  return tensor_.leave(Linear::forward(x));
}

Embedding::Embedding(std::int64_t vocabulary, std::int64_t hidden, Initializer weight,
                     at::ScalarType dtype, const TensorParallel& tensor)
    : weight_(add_parameter("weight", {vocabulary, hidden}, weight, dtype, tensor.cut(0))),
      tensor_(tensor) {}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  if (tensor_.axis == nullptr) return nn::embedding(ids, weight_);
  // Of tokens of other ranks the result and its gradient are zeros.
  const auto [own, others] = own_rows(ids);
  return tensor_.leave(nn::embedding(own, weight_).masked_fill(others, 0));
}

at::Tensor Embedding::add_gradient(const at::Tensor& ids, const at::Tensor& gradient) const {
  if (tensor_.axis == nullptr) return accumulate_embedding(ids, weight_, gradient);
  const auto [own, others] = own_rows(ids);
  return accumulate_embedding(own, weight_, tensor_.whole(gradient).masked_fill(others, 0));
}

std::pair<at::Tensor, at::Tensor> Embedding::own_rows(const at::Tensor& ids) const {
  const std::int64_t rows = weight_.size(0);
  const at::Tensor own = ids - tensor_.axis->rank() * rows;
  return {own.clamp(0, rows - 1), own.lt(0).logical_or_(own.ge(rows)).unsqueeze(-1)};
}

at::Tensor Embedding::as_head(const at::Tensor& x) { return nn::linear(x, weight_); }

RmsNorm::RmsNorm(std::int64_t hidden, double eps, at::ScalarType dtype,
                 const TensorPlacement& placement)
    : weight_(add_parameter("weight", {hidden}, Initializer::constant(1.0), dtype, placement)),
      eps_(eps) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) { return nn::rms_norm(x, weight_, eps_); }

}  // namespace zero::nn

#include <zero/nn/functional.hpp>
#include <zero/nn/layers.hpp>

namespace zero::nn {

Linear::Linear(std::int64_t in, std::int64_t out, Initializer weight, at::ScalarType dtype)
    : weight_(add_parameter("weight", {out, in}, weight, dtype)) {}

Linear::Linear(std::int64_t in, std::int64_t out, Initializer weight, Initializer bias,
               at::ScalarType dtype)
    : weight_(add_parameter("weight", {out, in}, weight, dtype)),
      bias_(add_parameter("bias", {out}, bias, dtype)) {}

at::Tensor Linear::forward(const at::Tensor& x) {
  return run_leaf(x, [this](const at::Tensor& own) { return nn::linear(own, weight_, bias_); });
}

Embedding::Embedding(std::int64_t vocabulary, std::int64_t hidden, Initializer weight,
                     at::ScalarType dtype)
    : weight_(add_parameter("weight", {vocabulary, hidden}, weight, dtype)) {}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  return run_leaf(ids, [this](const at::Tensor& own) { return nn::embedding(own, weight_); });
}

at::Tensor Embedding::as_head(const at::Tensor& x) {
  return run_leaf(x, [this](const at::Tensor& own) { return nn::linear(own, weight_); });
}

RmsNorm::RmsNorm(std::int64_t hidden, double eps, at::ScalarType dtype)
    : weight_(add_parameter("weight", {hidden}, Initializer::constant(1.0), dtype)), eps_(eps) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) {
  return run_leaf(x, [this](const at::Tensor& own) { return nn::rms_norm(own, weight_, eps_); });
}

}  // namespace zero::nn

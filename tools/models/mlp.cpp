#include "mlp.hpp"

#include <ATen/OpMathType.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <zero/base/error.hpp>

namespace zero::tools {
namespace {

std::shared_ptr<nn::Linear> dense(std::int64_t in, std::int64_t out, at::ScalarType dtype) {
  if (in < 1 || out < 1) {
    throw Error(fmt::format("a layer of an MLP is {} x {}, but sizes must be at least 1", in, out));
  }
  const auto first_values = nn::Initializer::uniform(1.0 / std::sqrt(static_cast<double>(in)));
  return std::make_shared<nn::Linear>(in, out, first_values, first_values, dtype);
}

}  // namespace

MlpLayer::MlpLayer(std::int64_t in, std::int64_t out, const MlpConfig& config)
    : linear_(register_module("linear", dense(in, out, config.dtype))) {}

at::Tensor MlpLayer::forward(const at::Tensor& x) {
  return run([&] { return linear_->forward(x).tanh(); });
}

Mlp::Mlp(const MlpConfig& config) : config_(config) {
  auto layers = register_module("layers", std::make_shared<nn::Layer>());
  std::int64_t in = config.inputs;
  for (const std::int64_t out : config.hidden) {
    layers_.push_back(layers->register_module(std::to_string(layers_.size()),
                                              std::make_shared<MlpLayer>(in, out, config)));
    in = out;
  }
  output_ = register_module("output", dense(in, config.outputs, config.dtype));
}

at::Tensor Mlp::loss(const at::Tensor& inputs, const at::Tensor& targets, std::int64_t terms) {
  check_inputs(inputs);
  const std::int64_t samples = inputs.size(0);
  if (!targets.defined() || targets.sizes() != at::IntArrayRef({samples, config_.outputs}) ||
      !takes(targets)) {
    throw Error(fmt::format("the targets of this batch must be {} [{}, {}]",
                            c10::toString(config_.dtype), samples, config_.outputs));
  }
  return run([&] {
    const at::Tensor y = outputs(inputs);
    const auto divisor = std::max<std::int64_t>(terms, 1) * config_.outputs;
    const at::ScalarType wide = at::toOpMathType(config_.dtype);
    return at::mse_loss(y.to(wide), targets.to(wide), at::Reduction::Sum) /
           static_cast<double>(divisor);
  });
}

at::Tensor Mlp::predict(const at::Tensor& inputs) {
  check_inputs(inputs);
  return run([&] { return outputs(inputs); });
}

bool Mlp::takes(const at::Tensor& data) const {
  const at::ScalarType dtype = data.scalar_type();
  return dtype == config_.dtype ||
         (dtype == at::kFloat && at::isReducedFloatingType(config_.dtype));
}

void Mlp::check_inputs(const at::Tensor& x) const {
  if (x.defined() && x.dim() == 2 && x.size(1) == config_.inputs && takes(x)) return;
  throw Error(fmt::format("the inputs of this MLP must be {} [samples, {}]",
                          c10::toString(config_.dtype), config_.inputs));
}

at::Tensor Mlp::outputs(const at::Tensor& x) {
  at::Tensor y = x.to(config_.dtype);
  for (const auto& layer : layers_) y = layer->forward(y);
  return output_->forward(y);
}

}  // namespace zero::tools

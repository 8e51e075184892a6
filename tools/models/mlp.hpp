#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <zero/nn/layers.hpp>
#include <zero/nn/unit.hpp>

namespace zero::tools {

/// The shape of an Mlp. Any sizes are allowed; sharding has to cope with odd ones.
struct MlpConfig {
  std::int64_t inputs = 13;
  std::vector<std::int64_t> hidden = {17, 11};  ///< sizes of the hidden layers, each a unit
  std::int64_t outputs = 3;
  /// The dtype of parameters and activations. For a 2-byte type the loss is computed and returned
  /// in float32, and inputs and targets may be float32 as well.
  at::ScalarType dtype = at::kFloat;
};

/// One hidden layer, a unit: tanh(linear(x)).
class MlpLayer : public nn::Unit {
 public:
  MlpLayer(std::int64_t in, std::int64_t out, const MlpConfig& config);
  /// [B, in] to [B, out], with the unit's hooks around it.
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<nn::Linear> linear_;
};

/// A multi-layer perceptron, the smallest model with units, weights and biases. The root unit holds
/// the output layer. Parameters are named layers.N.linear.weight, layers.N.linear.bias,
/// output.weight and output.bias; their first values are uniform in [-1/sqrt(in), 1/sqrt(in)).
class Mlp : public nn::Unit {
 public:
  /// Throws zero::Error for a size below 1.
  explicit Mlp(const MlpConfig& config = {});

  /// `inputs` float [B, inputs], `targets` float [B, outputs]. The sum of the squared errors
  /// divided by `terms`, the number of samples that count, and by the number of outputs. Throws
  /// zero::Error for a batch of another shape.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, std::int64_t terms);

  /// Outputs [B, outputs].
  at::Tensor predict(const at::Tensor& inputs);

  const MlpConfig& config() const { return config_; }

 private:
  bool takes(const at::Tensor& data) const;
  void check_inputs(const at::Tensor& x) const;
  at::Tensor outputs(const at::Tensor& x);

  MlpConfig config_;
  std::vector<std::shared_ptr<MlpLayer>> layers_;
  std::shared_ptr<nn::Linear> output_;
};

}  // namespace zero::tools

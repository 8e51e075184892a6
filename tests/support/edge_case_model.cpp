#include "edge_case_model.hpp"

#include <ATen/ops/mse_loss.h>

#include <zero/nn/functional.hpp>
#include <zero/nn/layers.hpp>

#include "random_model.hpp"

namespace zero::testing {

using nn::Initializer;

struct EdgeCaseModel::Inner : nn::Unit {
  Inner() {
    weight = add_parameter("weight", {kWidth, kWidth}, Initializer::normal(0.4));
    bias = add_parameter("bias", {kWidth}, Initializer::uniform(0.1));
    shift = add_parameter("shift", {kWidth}, Initializer::normal(0.2));
  }
  at::Tensor forward(const at::Tensor& x, bool with_shift) {
    return run([&] {
      const at::Tensor y = nn::linear(x, weight, bias).tanh();
      return with_shift ? y + shift : y;
    });
  }
  at::Tensor weight, bias, shift;
};

struct EdgeCaseModel::Frozen : nn::Unit {
  Frozen() {
    weight = add_parameter("weight", {kWidth, kWidth}, Initializer::normal(0.3));
    weight.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return x + nn::linear(x, weight); });
  }
  at::Tensor weight;
};

struct EdgeCaseModel::Layers : nn::Unit {
  Layers() {
    const auto normal = Initializer::normal(0.3);
    table = register_module("table", std::make_shared<nn::Embedding>(kWidth + 2, kWidth, normal));
    twice = register_module(
        "twice", std::make_shared<nn::Linear>(kWidth, kWidth, normal, Initializer::uniform(0.1)));
    norm = register_module("norm", std::make_shared<nn::RmsNorm>(kWidth, 1e-3));
    frozen = register_module("frozen", std::make_shared<nn::Linear>(kWidth, kWidth, normal));
    for (const at::Tensor& p : frozen->parameters()) p.requires_grad_(false);
  }
  // [n, 7] and ids [n] to [n, 9].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids) {
    return run([&] {
      at::Tensor y = twice->forward(x);
      y = y + table->forward(ids);
      y = frozen->forward(norm->forward(y)).tanh();
      return table->as_head(twice->forward(y));
    });
  }
  std::shared_ptr<nn::Embedding> table;
  std::shared_ptr<nn::Linear> twice, frozen;
  std::shared_ptr<nn::RmsNorm> norm;
};

EdgeCaseModel::EdgeCaseModel() {
  tied_ = add_parameter("tied", {kWidth, kInputs}, Initializer::normal(0.5));
  scale_ = add_parameter("scale", {}, Initializer::constant(1.5));
  few_ = add_parameter("few", {3}, Initializer::normal(0.5));
  sometimes_ = add_parameter("sometimes", {kWidth}, Initializer::normal(0.5));
  never_ = add_parameter("never", {11}, Initializer::normal(0.5));
  twice_ = register_module("twice", std::make_shared<Inner>());
  frozen_ = register_module("frozen", std::make_shared<Frozen>());
  last_ = register_module("last", std::make_shared<Inner>());
  layers_ = register_module("layers", std::make_shared<Layers>());
  // Not a parameter of the unit's own making: the same tensor under a second name.
  last_->register_parameter("tied_too", tied_, /*requires_grad=*/true);
}

at::Tensor EdgeCaseModel::predict(const data::Batch& batch) {
  return run([&] {
    const bool positive = batch.targets.view(-1)[0].item<double>() > 0;
    at::Tensor x = nn::linear(batch.inputs, tied_) * scale_;
    x = twice_->forward(x, positive);
    x = frozen_->forward(x);
    x = twice_->forward(x, !positive);
    if (positive) x = x + sometimes_;
    const at::Tensor ids = (batch.inputs.select(1, 0) * 3).abs().clamp(0, kWidth + 1);
    x = x + layers_->forward(x, ids.to(at::kLong)).narrow(1, 0, kWidth);
    x = last_->forward(x, positive);
    const at::Tensor back = x.matmul(tied_);  // [n, 5], ordinary autograd
    return (back.narrow(1, 0, 3) * few_).sum(1, /*keepdim=*/true);
  });
}

at::Tensor EdgeCaseModel::loss(const data::Batch& batch) {
  return at::mse_loss(predict(batch), batch.targets);
}

data::Batch edge_case_batch(std::uint64_t seed, int rank, int step) {
  data::Batch batch = random_model_batch({.inputs = EdgeCaseModel::kInputs}, seed, rank, step);
  batch.targets.view(-1)[0] = (rank + step) % 2 == 0 ? 1.0 : -1.0;
  return batch;
}

}  // namespace zero::testing

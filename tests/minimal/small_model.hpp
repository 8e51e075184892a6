#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cfloat>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/optimizer.hpp>

/// The model and the optimizer of the small programs (NN_…/minimal.cpp), once more as a module and
/// an optimizer of this library, so that a chapter's class can train them. Every operation is the
/// programs' own, on operands of the same shapes, so that the bits are theirs too.
namespace zero::testing {

inline constexpr int kSmallLayers = 4;
inline constexpr std::int64_t kSmallShapes[kSmallLayers][2] = {
    {13, 35}, {36, 30}, {31, 31}, {32, 11}};

/// What the ranks of chapter 07 receive: each block of `block` elements of `tensor` as whole
/// numbers from -`most` to `most` (127 in 8 bits, 7 in 4) and a scale, and back in float32.
inline at::Tensor through_numbers(const at::Tensor& tensor, std::int64_t block, int most) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& values : tensor.flatten().split(block)) {
    const at::Tensor scale = (values.abs().max() / most).clamp_min(FLT_MIN);
    blocks.push_back((values / scale).round().to(at::kChar) * scale);
  }
  return at::cat(blocks).view(tensor.sizes());
}

/// tanh([x, 1] weight), with the programs' backward. `parts`: one product is computed as so many,
/// each as the rank of chapter 08 that has this part computes it. Even layers are cut by columns.
/// `block`: unless it is 0, the weight in 8 bits takes the weight's place, and its gradient is that
/// of the weight.
class SmallLayerFunction : public torch::autograd::Function<SmallLayerFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& exact, std::int64_t layer, std::int64_t parts,
                            std::int64_t block) {
    const at::Tensor weight = block > 0 ? through_numbers(exact, block, 127) : exact;
    std::vector<at::Tensor> products;
    for (const auto& [inputs, part, rows] : cut(x, weight, layer, parts)) {
      products.push_back(inputs.mm(part));
      if (layer % 2 == 0) products.back().tanh_();
    }
    const at::Tensor output = layer % 2 == 0 ? at::cat(products, 1) : sum_of(products).tanh();
    context->save_for_backward({x, weight, output});
    context->saved_data["layer"] = layer;
    context->saved_data["parts"] = parts;
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const std::int64_t layer = context->saved_data["layer"].toInt();
    const std::int64_t parts = context->saved_data["parts"].toInt();
    const at::Tensor delta = gradients[0] * (1 - saved[2].square());
    std::vector<at::Tensor> of_inputs, of_weight;
    for (const auto& [inputs, part, rows] : cut(saved[0], saved[1], layer, parts)) {
      const auto index = static_cast<std::size_t>(of_weight.size());
      const at::Tensor mine = layer % 2 == 0 ? delta.chunk(parts, 1)[index].contiguous() : delta;
      of_weight.push_back(inputs.t().mm(mine));
      of_inputs.push_back(mine.mm(part.narrow(0, 0, rows).t()));
    }
    return {layer % 2 == 0 ? sum_of(of_inputs) : at::cat(of_inputs, 1),
            at::cat(of_weight, layer % 2 == 0 ? 1 : 0), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  struct Part {
    at::Tensor inputs, weight;
    std::int64_t rows;  // without the bias
  };

  static std::vector<Part> cut(const at::Tensor& x, const at::Tensor& weight, std::int64_t layer,
                               std::int64_t parts) {
    std::vector<Part> all;
    const bool by_columns = layer % 2 == 0;
    const auto weights = weight.chunk(parts, by_columns ? 1 : 0);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const at::Tensor mine = by_columns ? x : x.chunk(parts, 1)[p];
      const bool has_bias = by_columns || p + 1 == weights.size();
      all.push_back(
          {has_bias ? with_ones(mine) : mine.contiguous(), weights[p].contiguous(), mine.size(1)});
    }
    return all;
  }

  static at::Tensor sum_of(const std::vector<at::Tensor>& tensors) {
    at::Tensor sum = tensors[0];
    for (std::size_t t = 1; t < tensors.size(); ++t) sum = sum + tensors[t];
    return sum;
  }

  static at::Tensor with_ones(const at::Tensor& x) {
    return at::cat({x, at::ones({x.size(0), 1})}, 1);
  }
};

/// The mean of the squares of `output - target`, with the programs' backward.
class SmallLossFunction : public torch::autograd::Function<SmallLossFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& output,
                            const at::Tensor& target) {
    const at::Tensor error = output - target;
    context->save_for_backward({error});
    return error.square().mean();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list /*gradients*/) {
    const at::Tensor error = context->get_saved_variables()[0];
    return {error * (2.0 / static_cast<double>(error.numel())), at::Tensor()};
  }
};

/// One layer, a unit.
class SmallLayer : public nn::Unit {
 public:
  SmallLayer(int layer, int parts, std::int64_t block)
      : layer_(layer),
        parts_(parts),
        block_(block),
        weight_(add_parameter("weight", kSmallShapes[layer], nn::Initializer::constant(0.0))) {}

  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return SmallLayerFunction::apply(x, weight_, layer_, parts_, block_); });
  }

 private:
  std::int64_t layer_, parts_, block_;
  at::Tensor weight_;
};

/// The model. Its parameters are named layer0.weight to layer3.weight.
class SmallModel : public BatchModel {
 public:
  explicit SmallModel(int parts = 1, std::int64_t block = 0) {
    for (int layer = 0; layer < kSmallLayers; ++layer) {
      layers_.push_back(register_module("layer" + std::to_string(layer),
                                        std::make_shared<SmallLayer>(layer, parts, block)));
    }
  }

  at::Tensor loss(const data::Batch& batch) override {
    return run([&] { return SmallLossFunction::apply(outputs(batch.inputs), batch.targets); });
  }

 private:
  at::Tensor outputs(at::Tensor x) {
    for (const auto& layer : layers_) x = layer->forward(x);
    return x;
  }

  std::vector<std::shared_ptr<SmallLayer>> layers_;
};

/// The programs' first weights: each layer's from a generator seeded by its number.
class SmallValues final : public nn::ParameterSource {
 public:
  void fill(const nn::Parameter& parameter, at::Tensor& out) override {
    const at::NoGradGuard no_gradient;
    at::manual_seed(static_cast<std::uint64_t>(parameter.name[5] - '0'));  // "layer0.weight"
    out.copy_(at::randn(out.sizes()).mul_(0.2));
  }
};

/// The batch of a rank at a step, counted from 1.
inline data::Batch small_batch(int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  const at::Tensor inputs = at::randn({16, 12});
  return {.inputs = inputs, .targets = inputs.narrow(1, 0, 11).sin(), .loss_terms = 16};
}

/// The programs' AdamW, one operation after the other.
class SmallAdamW final : public optim::Optimizer {
 public:
  explicit SmallAdamW(std::vector<at::Tensor> parameters) {
    for (at::Tensor& tensor : parameters) held_.push_back({std::move(tensor), {}, {}, 0});
  }

  void step() override {
    const at::NoGradGuard no_gradient;
    const memory::Charge charge(memory::Category::kOptimizer);
    for (Held& held : held_) {
      const at::Tensor gradient = held.parameter.grad();
      if (!gradient.defined()) continue;
      if (held.steps++ == 0) {
        held.mean = at::zeros_like(gradient);
        held.square = at::zeros_like(gradient);
      }
      const auto step = static_cast<double>(held.steps);
      held.mean.mul_(0.9).add_(gradient * (1 - 0.9));
      held.square.mul_(0.999).add_(gradient.square() * (1 - 0.999));
      const at::Tensor root =
          (held.square / (1 - std::pow(0.999, step))).to(at::kDouble).sqrt().to(at::kFloat);
      const at::Tensor direction = held.mean / (1 - std::pow(0.9, step)) / (root + 1e-8);
      held.parameter.mul_(1 - 0.01 * 0.01).sub_(direction * 0.01);
    }
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    std::vector<Held> kept;
    for (Held& held : held_) {
      const at::Tensor now = with(held.parameter);
      if (!now.defined()) continue;
      kept.push_back(now.is_same(held.parameter) ? held : Held{now, {}, {}, 0});
    }
    held_ = std::move(kept);
  }

  // Nobody asks for them here.
  std::map<std::string, at::Tensor> state(const at::Tensor&) const override { return {}; }
  std::int64_t steps(const at::Tensor&) const override { return 0; }
  void set_learning_rate(double /*rate*/) override {}

 private:
  struct Held {
    at::Tensor parameter, mean, square;
    std::int64_t steps;
  };
  std::vector<Held> held_;
};

inline optim::OptimizerFactory small_adamw() {
  return [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<SmallAdamW>(parameters);
  };
}

}  // namespace zero::testing

#include "random_model.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>

#include <zero/nn/functional.hpp>
#include <zero/nn/layers.hpp>

namespace zero::testing {

using nn::Initializer;

// A unit whose forward is put together from outside.
class RandomModel::Block : public nn::Unit {
 public:
  explicit Block(const RandomModelConfig& config) : config_(config) {}
  at::Tensor add(const std::string& name, at::IntArrayRef sizes, Initializer initializer) {
    return add_parameter(name, sizes, initializer, config_.dtype);
  }
  at::Tensor add_weight(double deviation) {
    return add("weight", {config_.width, config_.width}, Initializer::normal(deviation));
  }
  // The usual forward: one output, and the input is all that comes from other units.
  void set_body(const std::function<at::Tensor(const at::Tensor&)>& body) {
    forward = [this, body](const at::Tensor& x) { return run([&] { return body(x); }); };
  }

  std::function<at::Tensor(const at::Tensor&)> forward;

 private:
  RandomModelConfig config_;
};

RandomModel::RandomModel(const RandomModelConfig& config) : config_(config) {
  const auto normal = Initializer::normal(0.5);
  first_ = add_parameter("first", {config.width, config.inputs}, normal, config.dtype);
  auto holder = register_module("parts", std::make_shared<nn::Layer>());
  for (const char letter : config.parts) add_part(letter, holder);
  last_ = config.tied ? first_
                      : add_parameter("last", {config.width, config.inputs}, normal, config.dtype);
}

void RandomModel::add_part(char letter, std::shared_ptr<nn::Layer> holder) {
  const std::string name = std::to_string(parts_.size());
  if (letter == 't' && first_plain_) {
    parts_.push_back(first_plain_);
  } else if (letter == 'g') {
    // Not a unit with parameters of its own: the scalar is the root's.
    const at::Tensor scale =
        add_parameter("scale" + name, {}, Initializer::constant(1.1), config_.dtype);
    parts_.push_back(std::make_shared<Block>(config_));
    parts_.back()->forward = [scale](const at::Tensor& x) { return x * scale; };
  } else {
    const bool plain = letter == 'a' || letter == 't';
    const auto part = make_part(plain ? 'a' : letter);
    parts_.push_back(holder->register_module(name, part));
    if (plain) first_plain_ = part;
  }
}

std::shared_ptr<RandomModel::Block> RandomModel::make_part(char letter) {
  const std::int64_t width = config_.width;
  auto block = std::make_shared<Block>(config_);
  if (letter == 'a') {
    const at::Tensor weight = block->add_weight(0.4);
    const at::Tensor bias = block->add("bias", {width}, Initializer::uniform(0.1));
    block->set_body([=](const at::Tensor& x) { return nn::linear(x, weight, bias).tanh(); });
  } else if (letter == 'f') {
    const at::Tensor weight = block->add_weight(0.2).requires_grad_(false);
    block->set_body([=](const at::Tensor& x) { return x + nn::linear(x, weight); });
  } else if (letter == 'n') {
    const at::Tensor gain = block->add("gain", {width}, Initializer::constant(0.9));
    const auto inner = block->register_module("inner", make_part('a'));
    block->set_body([=](const at::Tensor& x) { return inner->forward(x * gain) + x; });
  } else if (letter == 'l') {
    const auto normal = Initializer::normal(0.3);
    const auto first = block->register_module(
        "first", std::make_shared<nn::Linear>(width, width, normal, Initializer::uniform(0.1),
                                              config_.dtype));
    const auto norm =
        block->register_module("norm", std::make_shared<nn::RmsNorm>(width, 1e-3, config_.dtype));
    const auto last = block->register_module(
        "last", std::make_shared<nn::Linear>(width, width, normal, config_.dtype));
    block->set_body([=](const at::Tensor& x) {
      const at::Tensor y = norm->forward(first->forward(x)).tanh();
      return x + last->forward(first->forward(y));
    });
  } else if (letter == 's') {
    std::vector<at::Tensor> few;
    for (std::int64_t i = 0; i < 12; ++i) {
      few.push_back(block->add(fmt::format("few{}", i), {std::min<std::int64_t>(width, 1 + i % 3)},
                               Initializer::normal(0.1)));
    }
    block->set_body([=](at::Tensor x) {
      for (const at::Tensor& one : few) x = x + one.sum();
      return x * 0.5;
    });
  } else if (letter == 'd') {
    const auto inner = block->register_module("inner", make_part('a'));
    block->set_body([=](const at::Tensor& x) { return inner->forward(x); });
  }
  return block;
}

at::Tensor RandomModel::predict(const data::Batch& batch) {
  return run([&] {
    at::Tensor x = nn::linear(batch.inputs, first_);
    if (in_forward_) in_forward_();
    for (std::size_t p = 0; p < std::min(used_parts_, parts_.size()); ++p) {
      x = parts_[p]->forward(x);
    }
    return x.matmul(last_).sum(1, /*keepdim=*/true);
  });
}

at::Tensor RandomModel::loss(const data::Batch& batch) {
  const auto terms = static_cast<double>(std::max<std::int64_t>(batch.loss_terms, 1));
  // In at least float32: a sum of squares is soon too large for float16.
  const at::ScalarType wide = config_.dtype == at::kDouble ? at::kDouble : at::kFloat;
  return at::mse_loss(predict(batch).to(wide), batch.targets.to(wide), at::Reduction::Sum) / terms;
}

at::Tensor RandomModel::run_part(std::size_t index, const at::Tensor& x) {
  return parts_[index]->forward(x);
}

data::Batch random_model_batch(const RandomModelConfig& config, std::uint64_t seed, int rank,
                               int step, std::int64_t samples) {
  at::Generator generator = at::detail::createCPUGenerator(
      seed * 1000003 + static_cast<std::uint64_t>(rank) * 1009 + static_cast<std::uint64_t>(step));
  const auto options = at::TensorOptions().dtype(config.dtype);
  return {.inputs = at::randn({samples, config.inputs}, generator, options),
          .targets = at::randn({samples, 1}, generator, options),
          .loss_terms = samples};
}

data::Batch concatenate(const std::vector<data::Batch>& batches) {
  std::vector<at::Tensor> inputs, targets;
  data::Batch all;
  for (const data::Batch& batch : batches) {
    inputs.push_back(batch.inputs);
    targets.push_back(batch.targets);
    all.loss_terms += batch.loss_terms;
  }
  all.inputs = at::cat(inputs);
  all.targets = at::cat(targets);
  return all;
}

}  // namespace zero::testing

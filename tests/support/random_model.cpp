#include "random_model.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>

#include <zero/data/random.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/layers.hpp>

namespace zero::testing {

using nn::Initializer;

std::string RandomModelConfig::describe() const {
  return fmt::format("{} inputs, width {}, parts '{}', {}, {}", inputs, width, parts,
                     tied ? "tied" : "not tied", c10::toString(dtype));
}

RandomModelConfig random_config(std::uint64_t seed, at::ScalarType dtype) {
  data::SplitMix64 random(seed);
  RandomModelConfig config;
  config.inputs = 1 + static_cast<std::int64_t>(random.below(9));
  config.width = 1 + static_cast<std::int64_t>(random.below(19));
  config.parts.clear();
  const std::uint64_t parts = random.below(6);
  for (std::uint64_t p = 0; p < parts; ++p) config.parts += "aatfnsg"[random.below(7)];
  config.tied = random.below(2) == 0;
  config.dtype = dtype;
  return config;
}

class RandomModel::Block : public nn::Unit {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

class RandomModel::Plain : public Block {
 public:
  explicit Plain(const RandomModelConfig& c) {
    weight_ = add_parameter("weight", {c.width, c.width}, Initializer::normal(0.4), c.dtype);
    bias_ = add_parameter("bias", {c.width}, Initializer::uniform(0.1), c.dtype);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run([&] { return nn::linear(x, weight_, bias_).tanh(); }, {x});
  }

 private:
  at::Tensor weight_, bias_;
};

class RandomModel::Frozen : public Block {
 public:
  explicit Frozen(const RandomModelConfig& c) {
    weight_ = add_parameter("weight", {c.width, c.width}, Initializer::normal(0.2), c.dtype);
    weight_.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run([&] { return x + nn::linear(x, weight_); }, {x});
  }

 private:
  at::Tensor weight_;
};

class RandomModel::Nested : public Block {
 public:
  explicit Nested(const RandomModelConfig& c) {
    gain_ = add_parameter("gain", {c.width}, Initializer::constant(0.9), c.dtype);
    inner_ = register_module("inner", std::make_shared<Plain>(c));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run([&] { return inner_->forward(x * gain_) + x; }, {x});
  }

 private:
  at::Tensor gain_;
  std::shared_ptr<Plain> inner_;
};

class RandomModel::Layers : public Block {
 public:
  explicit Layers(const RandomModelConfig& c) {
    const auto normal = Initializer::normal(0.3);
    first_ = register_module(
        "first",
        std::make_shared<nn::Linear>(c.width, c.width, normal, Initializer::uniform(0.1), c.dtype));
    norm_ = register_module("norm", std::make_shared<nn::RmsNorm>(c.width, 1e-3, c.dtype));
    last_ =
        register_module("last", std::make_shared<nn::Linear>(c.width, c.width, normal, c.dtype));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run(
        [&] {
          const at::Tensor y = norm_->forward(first_->forward(x)).tanh();
          return x + last_->forward(first_->forward(y));
        },
        {x});
  }

 private:
  std::shared_ptr<nn::Linear> first_, last_;
  std::shared_ptr<nn::RmsNorm> norm_;
};

class RandomModel::Small : public Block {
 public:
  explicit Small(const RandomModelConfig& c) {
    for (std::int64_t i = 0; i < 12; ++i) {
      const std::int64_t size = std::min<std::int64_t>(c.width, 1 + i % 3);
      few_.push_back(
          add_parameter(fmt::format("few{}", i), {size}, Initializer::normal(0.1), c.dtype));
    }
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run(
        [&] {
          at::Tensor sum = x;
          for (const at::Tensor& few : few_) sum = sum + few.sum();
          return sum * 0.5;
        },
        {x});
  }

 private:
  std::vector<at::Tensor> few_;
};

// Not a unit with parameters of its own: the scalar is the root's.
class RandomModel::Scale : public Block {
 public:
  explicit Scale(at::Tensor scale) : scale_(std::move(scale)) {}
  at::Tensor forward(const at::Tensor& x) override { return x * scale_; }

 private:
  at::Tensor scale_;
};

class RandomModel::Optional : public Block {
 public:
  Optional(const RandomModelConfig& c, const bool& uses_shift, bool holds_a_unit)
      : uses_shift_(uses_shift) {
    weight_ = add_parameter("weight", {c.width, c.width}, Initializer::normal(0.4), c.dtype);
    shift_ = add_parameter("shift", {c.width}, Initializer::normal(0.3), c.dtype);
    if (holds_a_unit) inner_ = register_module("inner", std::make_shared<Plain>(c));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run(
        [&] {
          at::Tensor y = nn::linear(x, weight_);
          if (uses_shift_) y = y + shift_;
          return inner_ ? inner_->forward(y) + x : y.tanh();
        },
        {x});
  }

 private:
  const bool& uses_shift_;
  at::Tensor weight_, shift_;
  std::shared_ptr<Plain> inner_;
};

class RandomModel::PassedThrough : public Block {
 public:
  PassedThrough(const RandomModelConfig& c, const bool& is_used) : is_used_(is_used) {
    weight_ = add_parameter("weight", {c.width, c.width}, Initializer::normal(0.3), c.dtype);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run([&] { return is_used_ ? x + nn::linear(x, weight_) : x; }, {x});
  }

 private:
  const bool& is_used_;
  at::Tensor weight_;
};

class RandomModel::TwoOutputs : public Block {
 public:
  TwoOutputs(const RandomModelConfig& c, const bool& uses_shift) : uses_shift_(uses_shift) {
    weight_ = add_parameter("weight", {c.width, c.width}, Initializer::normal(0.3), c.dtype);
    shift_ = add_parameter("shift", {c.width}, Initializer::normal(0.3), c.dtype);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const std::vector<at::Tensor> both = run_many(
        [&] {
          const at::Tensor first = x.tanh() * weight_.select(0, 0);
          const at::Tensor second = nn::linear(first, weight_);
          return std::vector<at::Tensor>{first, uses_shift_ ? second + shift_ : second};
        },
        {x});
    return both[0] + both[1];
  }

 private:
  const bool& uses_shift_;
  at::Tensor weight_, shift_;
};

class RandomModel::Around : public Block {
 public:
  explicit Around(const RandomModelConfig& c) {
    inner_ = register_module("inner", std::make_shared<Plain>(c));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run([&] { return inner_->forward(x); }, {x});
  }

 private:
  std::shared_ptr<Plain> inner_;
};

class RandomModel::Skip : public Block {
 public:
  Skip(const RandomModelConfig& c, const at::Tensor& early) : early_(early) {
    weight_ = add_parameter("weight", {c.width, c.width}, Initializer::normal(0.4), c.dtype);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return run([&] { return nn::linear(x * early_, weight_).tanh(); }, {x, early_});
  }

 private:
  const at::Tensor& early_;
  at::Tensor weight_;
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
  const auto first_plain = std::find_if(parts_.begin(), parts_.end(), [](const auto& part) {
    return dynamic_cast<Plain*>(part.get()) != nullptr;
  });
  if (letter == 't' && first_plain != parts_.end()) {
    const std::shared_ptr<Block> again = *first_plain;
    parts_.push_back(again);
  } else if (letter == 'f') {
    parts_.push_back(holder->register_module(name, std::make_shared<Frozen>(config_)));
  } else if (letter == 'n') {
    parts_.push_back(holder->register_module(name, std::make_shared<Nested>(config_)));
  } else if (letter == 'l') {
    parts_.push_back(holder->register_module(name, std::make_shared<Layers>(config_)));
  } else if (letter == 's') {
    parts_.push_back(holder->register_module(name, std::make_shared<Small>(config_)));
  } else if (letter == 'o' || letter == 'h') {
    parts_.push_back(holder->register_module(
        name, std::make_shared<Optional>(config_, uses_shifts_, letter == 'h')));
  } else if (letter == 'i') {
    parts_.push_back(
        holder->register_module(name, std::make_shared<PassedThrough>(config_, uses_shifts_)));
  } else if (letter == 'b') {
    parts_.push_back(
        holder->register_module(name, std::make_shared<TwoOutputs>(config_, uses_shifts_)));
  } else if (letter == 'd') {
    parts_.push_back(holder->register_module(name, std::make_shared<Around>(config_)));
  } else if (letter == 'k') {
    parts_.push_back(holder->register_module(name, std::make_shared<Skip>(config_, after_first_)));
  } else if (letter == 'g') {
    parts_.push_back(std::make_shared<Scale>(
        add_parameter("scale" + name, {}, Initializer::constant(1.1), config_.dtype)));
  } else {
    parts_.push_back(holder->register_module(name, std::make_shared<Plain>(config_)));
  }
}

at::Tensor RandomModel::predict(const data::Batch& batch) {
  return run(
      [&] {
        at::Tensor x = nn::linear(batch.inputs, first_);
        after_first_ = x;
        uses_shifts_ = batch.targets.numel() > 0 && batch.targets.view(-1)[0].item<double>() > 0;
        if (in_forward_) in_forward_();
        for (std::size_t p = 0; p < std::min(used_parts_, parts_.size()); ++p) {
          x = parts_[p]->forward(x);
        }
        after_first_.reset();
        return x.matmul(last_).sum(1, /*keepdim=*/true);
      },
      {});
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
  data::Batch batch;
  batch.inputs = at::randn({samples, config.inputs}, generator, options);
  batch.targets = at::randn({samples, 1}, generator, options);
  batch.loss_terms = samples;
  return batch;
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

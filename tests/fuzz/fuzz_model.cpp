#include "fuzz_model.hpp"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <utility>

#include <tests/support/random_model.hpp>
#include <tools/ladder/data/random.hpp>
#include <zero/base/error.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/functional.hpp>

namespace zero::testing {

using nn::Initializer;

namespace {
constexpr std::int64_t kInputs = 5;
constexpr std::int64_t kVocabulary = 4;
}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  if (name == "double") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  return at::kFloat;
}

data::Batch fuzz_batch(const Program& program, int rank, int number) {
  std::int64_t samples = 3;
  if (program.uneven) {
    const auto stream = static_cast<std::uint64_t>(100 * number + rank);
    samples = static_cast<std::int64_t>(data::generator_for(program.seed, stream).below(4));
    if (rank == number % program.ranks) samples += 2;  // somebody has some
  }
  return random_model_batch({.inputs = kInputs, .dtype = dtype_of(program.dtype)}, program.seed,
                            rank, number, samples);
}

// A unit whose forward is put together from outside.
class FuzzModel::Part : public nn::Unit {
 public:
  explicit Part(at::ScalarType dtype) : dtype_(dtype) {}
  at::Tensor add(const std::string& name, at::IntArrayRef sizes, double deviation = 0.3,
                 std::optional<at::ScalarType> dtype = {}) {
    return add_parameter(name, sizes, Initializer::normal(deviation), dtype.value_or(dtype_));
  }
  Function as_unit(const Function& body) {
    return [this, body](const at::Tensor& x) { return run([&] { return body(x); }); };
  }
  using nn::Unit::run;
  using nn::Unit::run_many;

 private:
  at::ScalarType dtype_;
};

FuzzModel::FuzzModel(const Program& program) : program_(program), dtype_(dtype_of(program.dtype)) {
  const auto normal = Initializer::normal(0.5);
  const std::vector<std::int64_t> sizes = {program.width, kInputs};
  first_weight_ = add_parameter("first", sizes, normal, dtype_);
  const auto holder = register_module("parts", std::make_shared<nn::Layer>());
  std::size_t at = 0;
  while (at < program.parts.size()) {
    for (const Function& part : make_parts(program.parts, at, *holder)) parts_.push_back(part);
    ++at;  // a bracket without a partner
  }
  last_weight_ = program.parts.find('h') == std::string::npos
                     ? add_parameter("last", sizes, normal, dtype_)
                     : first_weight_;
}

// The parts from `at` to the bracket that closes, or to the end.
std::vector<FuzzModel::Function> FuzzModel::make_parts(const std::string& letters, std::size_t& at,
                                                       torch::nn::Module& holder) {
  const std::string odd = "sSMbvkzZBuYX", without_unit = "r!?gpjyhi";
  std::vector<Function> parts;
  for (; at < letters.size() && letters[at] != ')' && letters[at] != ']'; ++at) {
    const char letter = letters[at];
    if (without_unit.find(letter) != std::string::npos) {
      add_part(letter, parts);
    } else {
      const auto unit = std::make_shared<Part>(dtype_);
      holder.register_module(fmt::format("{}", holder.children().size()), unit);
      if (letter == '(' || letter == '[') {
        parts.push_back(make_group(letter, make_parts(letters, ++at, *unit), unit));
      } else if (odd.find(letter) != std::string::npos) {
        parts.push_back(make_odd_part(letter, *unit));
      } else {
        parts.push_back(make_layer(letter, *unit));
      }
    }
  }
  return parts;
}

void FuzzModel::add_part(char letter, std::vector<Function>& parts) {
  if (letter == 'r' && !parts.empty()) parts.push_back(parts.back());
  if (letter == '!') parts.emplace_back([](at::Tensor x) { return x.mul_(0.9); });
  if (letter == '?') parts.emplace_back([](at::Tensor x) { return x.tanh_(); });
  if (letter == 'g') {
    const at::Tensor scale =
        add_parameter(fmt::format("scale{}", scales_++), {}, Initializer::constant(1.1), dtype_);
    parts.emplace_back([scale](const at::Tensor& x) { return x * scale; });
  }
  if (letter == 'p' && parts.size() > 1) {
    const Function one = parts[parts.size() - 2], other = parts.back();
    parts.resize(parts.size() - 2);
    parts.emplace_back([=](const at::Tensor& x) { return one(x) * 0.5 + other(x); });
  }
  if (letter == 'j') {
    parts.emplace_back([this](const at::Tensor& x) {
      own_losses_ = own_losses_ + x.to(at::kFloat).square().mean();
      return x.detach();
    });
  }
  if (letter == 'y') {
    parts.emplace_back([](const at::Tensor& x) {
      if (!x.requires_grad()) return x;
      x.register_hook([](const at::Tensor& gradient) { return gradient * 1.25; });
      x.retain_grad();
      return x;
    });
  }
}

FuzzModel::Function FuzzModel::make_group(char letter, const std::vector<Function>& inner,
                                          const std::shared_ptr<Part>& unit) {
  const Function all = [inner](at::Tensor x) {
    for (const Function& part : inner) x = part(x);
    return x;
  };
  if (letter == '[') {
    return [all](const at::Tensor& x) {
      return nn::checkpoint([all](const auto& inputs) { return all(inputs[0] * 1.0); }, {x});
    };
  }
  const at::Tensor gain = unit->add("gain", {program_.width}, 1);
  return unit->as_unit([=](const at::Tensor& x) { return all(x * gain) + x; });
}

// Small letters with the layers of zero/nn, capitals with LibTorch's operations.
FuzzModel::Function FuzzModel::make_layer(char letter, Part& unit) {
  const std::int64_t width = program_.width;
  const char kind = static_cast<char>(std::tolower(letter));
  const bool own = kind == letter;
  const auto linear = [own](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b = {}) {
    if (own) return nn::linear(x, w, b);
    return b.defined() ? x.matmul(w.t()) + b : x.matmul(w.t());
  };
  if (kind == 'd') {
    const at::Tensor weight = unit.add("weight", {width, width}, 0.3, at::kDouble);
    return unit.as_unit([=, type = dtype_](const at::Tensor& x) {
      return x + linear(x.to(at::kDouble), weight).tanh().to(type);
    });
  }
  if (kind == 'e') {
    const at::Tensor table = unit.add("table", {kVocabulary, width});
    const auto rows = [=](const at::Tensor& ids) {
      return own ? nn::embedding(ids, table) : at::embedding(table, ids);
    };
    return unit.as_unit(
        [=, this](const at::Tensor& x) { return x + rows(ids_) * rows((ids_ + 1) % kVocabulary); });
  }
  if (kind == 'n') {
    const at::Tensor weight = unit.add("weight", {width}, 1);
    return unit.as_unit([=](const at::Tensor& x) {
      return own ? nn::rms_norm(x, weight, 0.1)
                 : x * weight / (x.square().mean(-1, /*keepdim=*/true) + 0.1).sqrt();
    });
  }
  const bool is_tied = kind == 'w' && tied_.defined();
  const at::Tensor weight =
      is_tied ? unit.register_parameter("weight", tied_) : unit.add("weight", {width, width});
  if (kind == 'w') tied_ = weight;
  if (kind == 'a') {
    return unit.as_unit(
        [=](const at::Tensor& x) { return x + linear(linear(x, weight).tanh(), weight); });
  }
  const at::Tensor bias = unit.add("bias", {width}, 0.1);
  if (kind == 'f') weight.requires_grad_(false);
  if (letter == 'F') bias.requires_grad_(false);
  const Function layer = [=](const at::Tensor& x) { return x + linear(x, weight, bias).tanh(); };
  const Function dropout = [=](const at::Tensor& x) { return at::dropout(layer(x), 0.3, true); };
  if (kind == 'c') {
    return unit.as_unit([=](const at::Tensor& x) {
      return nn::checkpoint([=](const auto& inputs) { return dropout(inputs[0]); }, {x});
    });
  }
  return unit.as_unit(kind == 'o' ? dropout : layer);
}

FuzzModel::Function FuzzModel::make_odd_part(char letter, Part& unit) {
  const std::int64_t width = program_.width;
  if (letter == 'z') {
    std::vector<at::Tensor> few;
    for (std::int64_t i = 0; i < 9; ++i) few.push_back(unit.add(fmt::format("few{}", i), {i % 4}));
    few.push_back(unit.add("one", {}));
    return unit.as_unit([=](at::Tensor x) {
      for (const at::Tensor& one : few) x = x + one.sum() * 0.1;
      return x;
    });
  }
  if (letter == 'Z') {
    const at::Tensor none = unit.add("none", {0, 3});
    unit.add("frozen", {2, 0}).requires_grad_(false);
    return unit.as_unit([=](const at::Tensor& x) { return x + none.sum(); });
  }
  if (letter == 'B') {
    const at::Tensor weight = unit.add("weight", {width}, 1);
    const at::Tensor mean = unit.register_buffer("mean", at::zeros({width}, dtype_));
    const at::Tensor variance = unit.register_buffer("variance", at::ones({width}, dtype_));
    return unit.as_unit([=](const at::Tensor& x) {
      return at::batch_norm(x, weight, {}, mean, variance, c10::GradMode::is_enabled(), 0.1, 0.1,
                            false);
    });
  }
  if (letter == 'v') {
    const at::Tensor weight = unit.add("weight", {width, 2 * width});
    return unit.as_unit(
        [=](const at::Tensor& x) { return x.matmul(weight).narrow(1, width / 2, width); });
  }
  const at::Tensor weight = unit.add("weight", {width, width});
  if (letter == 'X') {
    return unit.as_unit([=, this](const at::Tensor& x) {
      {
        const auto whole = held(weight);
        const c10::NoGradGuard no_grad;
        at::Tensor(weight).clamp_(-0.1, 0.1);
      }
      return x + x.matmul(weight).tanh();
    });
  }
  const at::Tensor shift = unit.add("shift", {width});
  if (letter == 'Y') {
    return unit.as_unit([=, this](const at::Tensor& x) {
      const at::Tensor y = x.matmul(weight).tanh();
      own_losses_ = own_losses_ + (x * shift).to(at::kFloat).square().sum();
      return y;
    });
  }
  const auto shifted = [=, this](const at::Tensor& y) { return uses_shifts_ ? y + shift : y * 1; };
  if (letter == 's') {
    return unit.as_unit([=](const at::Tensor& x) { return shifted(x.matmul(weight)); });
  }
  if (letter == 'S') {
    return unit.as_unit([=, this](const at::Tensor& x) {
      return uses_shifts_ ? x + x.matmul(weight).tanh() + shift : x;
    });
  }
  if (letter == 'M') {
    return unit.as_unit(
        [=](const at::Tensor& x) { return shift + nn::linear(x.matmul(weight).tanh(), weight); });
  }
  if (letter == 'k') {
    return [=, this, &unit](const at::Tensor& x) {
      return unit.run([&] { return x + (x * first_).matmul(weight).tanh() + shift; });
    };
  }
  if (letter == 'b') {
    return [=, &unit](const at::Tensor& x) {
      const std::vector<at::Tensor> both = unit.run_many([&] {
        const at::Tensor one = x.tanh() * weight.select(0, 0);
        return std::vector<at::Tensor>{one, shifted(one.matmul(weight))};
      });
      return both[0] + both[1];
    };
  }
  return [](const at::Tensor& x) { return x * 1; };  // u
}

at::Tensor FuzzModel::outputs(const data::Batch& batch) {
  ids_ = (batch.inputs.detach().select(1, 0).abs() * 10).to(at::kLong) % kVocabulary;
  uses_shifts_ = batch.targets.numel() > 0 && batch.targets.view(-1)[0].item<double>() > 0;
  at::Tensor x = batch.inputs.matmul(first_weight_.t());
  first_ = x.tanh();
  own_losses_ = at::zeros({});
  const std::size_t forward = std::exchange(throw_in_forward_, kNever);
  const std::size_t backward = std::exchange(throw_in_backward_, kNever);
  const auto count = parts_.size() + 1;
  for (std::size_t p = 0; p < count; ++p) {
    if (forward != kNever && p == forward % count) throw std::runtime_error(kThrown);
    if (p < parts_.size()) x = parts_[p](x);
    after_part();
    if (backward != kNever && p == backward % count) {
      x.register_hook([](const at::Tensor&) { throw std::runtime_error(kThrown); });
    }
  }
  return head(x).sum(1, /*keepdim=*/true);
}

at::Tensor FuzzModel::head(const at::Tensor& x) const {
  const bool steps = program_.parts.find('i') != std::string::npos && c10::GradMode::is_enabled();
  if (!steps) return x.matmul(last_weight_);
  const auto slope = torch::autograd::grad({x.matmul(last_weight_).square().mean()}, {last_weight_},
                                           {}, /*retain_graph=*/true,
                                           /*create_graph=*/true)[0];
  return x.matmul(last_weight_ - 0.1 * slope);
}

at::Tensor FuzzModel::loss(const data::Batch& batch) {
  return run([&] {
    data::Batch own = batch;
    if (penalised_) own.inputs = batch.inputs.detach().requires_grad_();
    const at::ScalarType wide = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor y = outputs(own).to(wide);
    at::Tensor sum = (y - batch.targets.to(wide)).square().sum();
    if (penalised_) {
      const auto slopes = torch::autograd::grad({y.sum()}, {own.inputs}, {},
                                                /*retain_graph=*/true, /*create_graph=*/true);
      sum = sum + 0.1 * slopes[0].to(wide).square().sum();
    }
    return sum / static_cast<double>(std::max<std::int64_t>(batch.loss_terms, 1)) +
           0.1 * own_losses_;
  });
}

}  // namespace zero::testing

// Compares one clipped step of ZeRO-1 with one of DDP, to 1e-6 and then to the last bit.

#include <fmt/format.h>

#include <cmath>

#include <00_simple_ddp/simple_ddp.hpp>
#include <01_zero1/zero1_sharding.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <zero/nn/defer.hpp>
#include <zero/optim/adamw.hpp>

#include "01c.hpp"

namespace exercise_01c {

using zero::dist::Communicator;
using zero::exercise::Mistake;
using zero::nn::Initializer;

// A tied, a frozen, a scalar and a never used parameter, and one that only rank 0 uses.
class Uneven : public zero::nn::Unit {
 public:
  Uneven() {
    const auto values = Initializer::uniform(1);
    weight_ = add_parameter("weight", {7}, values);
    register_parameter("tied", weight_);
    frozen_ = add_parameter("frozen", {7}, values);
    frozen_.set_requires_grad(false);
    add_parameter("never", {5}, values);
    scale_ = add_parameter("scale", {}, values);
    sometimes_ = add_parameter("sometimes", {7}, values);
  }
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, std::int64_t samples) {
    return run([&] {
      const at::Tensor x = inputs.narrow(1, 0, 7);
      at::Tensor y = x.mv(weight_ + frozen_) * scale_ + x.square().mv(weight_);
      if (targets[0][0].item<float>() == 0) y = y + x.mv(sometimes_);
      return y.square().sum() / samples;
    });
  }

 private:
  at::Tensor weight_, frozen_, scale_, sometimes_;
};

// Whole numbers whose squares add up to that of 17807201; small ones, so that averages are exact.
std::vector<float> large_gradient() {
  std::vector<float> parts;
  for (std::int64_t left = std::int64_t{17807201} * 17807201; left > 0;) {
    const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(left)));
    parts.push_back(static_cast<float>(std::min<std::int64_t>(root, 1 << 21)));
    left -= static_cast<std::int64_t>(parts.back()) * static_cast<std::int64_t>(parts.back());
  }
  return parts;
}

// Its gradient tells whether sums of squares were rounded on the way. Those of the first parameter
// add up to the square of a number that lies halfway between two floats. Those of each other add up
// to half of what a double of that size can tell apart: added to it in double they vanish.
class Halfway : public zero::nn::Unit {
 public:
  Halfway() {
    const auto size = static_cast<std::int64_t>(gradient_.size());
    large_ = add_parameter("large", {size}, Initializer::constant(1));
    for (int i = 0; i < 8; ++i) {
      small_.push_back(add_parameter(fmt::format("small{}", i), {2}, Initializer::constant(1)));
    }
  }
  at::Tensor loss(const at::Tensor&, const at::Tensor&, std::int64_t) {
    return run([&] {
      at::Tensor sum = (large_ * at::from_blob(gradient_.data(), large_.sizes())).sum();
      for (const at::Tensor& small : small_) sum = sum + (small * 0.125).sum();
      return sum;
    });
  }

 private:
  std::vector<float> gradient_ = large_gradient();
  at::Tensor large_;
  std::vector<at::Tensor> small_;
};

// A model and how it makes a loss.
struct Trained {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& targets)> loss;
};

template <typename Model>
Trained deferred() {
  const auto model = zero::nn::defer([] { return std::make_shared<Model>(); });
  return {model, [model](const at::Tensor& inputs, const at::Tensor& targets) {
            return model->loss(inputs, targets, inputs.size(0));
          }};
}

struct Example {
  Trained (*model)();
  double max_norm;
};
constexpr Example kExamples[] = {{deferred<zero::tools::Mlp>, 0.05},
                                 {deferred<zero::tools::Mlp>, 1e6},
                                 {deferred<Uneven>, 0.05},
                                 {deferred<Halfway>, 1e9}};

class Zero1 final : public zero::Zero1Sharding {
 public:
  using Zero1Sharding::Zero1Sharding;
  float clip_grad_norm(double) override {
    throw Mistake("this calls Strategy::clip_grad_norm(), which is our answer");
  }
};

std::vector<at::Tensor> gradients_of(const zero::train::Strategy& strategy) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : strategy.list().parameters) {
    const at::Tensor gradient = parameter.tensor.grad();
    gradients.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
  }
  return gradients;
}

void backward(zero::train::Strategy& strategy, const Trained& model) {
  const int rank = strategy.communicator().rank();
  at::manual_seed(rank);
  const at::Tensor inputs = at::randn({4, 13});
  const at::Tensor targets = at::full({4, 3}, static_cast<float>(rank));
  strategy.backward(strategy.forward([&] { return model.loss(inputs, targets); }));
  strategy.finish_backward();
}

// A difference of up to `tolerance` of a number.
bool differs(double number, double right, double tolerance) {
  return std::abs(number - right) > tolerance * std::abs(right);
}

std::string explain_norm(double norm, double right, int ranks, double tolerance) {
  if (norm == 0) return "the norm is 0: nothing has been added up";
  const std::string begin = fmt::format("the norm is {} and DDP's is {}: ", norm, right);
  if (tolerance == 0) return begin + "a sum of squares was rounded on the way, or is not in double";
  if (!differs(norm * std::sqrt(ranks), right, tolerance))
    return begin + "the squares are averaged";
  return begin + (norm < right ? "too small, so gradients that a rank owns are left out"
                               : "too large, so a gradient counts on a rank that does not own it, "
                                 "or norms were added and not their squares");
}

void check_step(const Answer& answer, Communicator& communicator, const Example& example,
                double tolerance) {
  zero::nn::SeededValues values(5);
  const auto model_of_ddp = example.model();
  zero::SimpleDdp ddp({*model_of_ddp.module, communicator, zero::optim::adamw(), &values});
  backward(ddp, model_of_ddp);
  const float right = ddp.clip_grad_norm(example.max_norm);
  const std::vector<at::Tensor> right_gradients = gradients_of(ddp);

  const auto model = example.model();
  Zero1 strategy({*model.module, communicator, zero::optim::adamw(), &values});
  backward(strategy, model);
  const std::vector<at::Tensor> before = gradients_of(strategy);
  const std::int64_t sent_before = communicator.traffic().bytes();
  const float norm = answer.clip_grad_norm(strategy, example.max_norm);
  const std::int64_t sent = communicator.traffic().bytes() - sent_before;

  const std::vector<double> norms = all_gather_scalars(communicator, {norm});
  const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
  if (*least != *most) throw Mistake("the ranks have different norms, each that of what it owns");
  if (differs(norm, right, tolerance)) {
    throw Mistake(explain_norm(norm, right, communicator.size(), tolerance));
  }
  const std::vector<at::Tensor> after = gradients_of(strategy);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (!before[i].defined()) continue;
    if (!strategy.owns(i) && !after[i].equal(before[i])) {
      throw Mistake(
          fmt::format("the gradient of parameter {} changes on a rank that does not own it", i));
    }
    if (strategy.owns(i) && !after[i].allclose(right_gradients[i], tolerance, /*atol=*/0)) {
      throw Mistake(fmt::format(
          "the norm is right, and the gradient of parameter {} is not: its owner multiplies it by "
          "clip_coefficient(), once",
          i));
    }
  }
  const std::int64_t enough = zero::dist::all_reduce_bytes(
      static_cast<std::int64_t>(after.size()), 8, communicator.rank(), communicator.size());
  if (sent > enough) {
    throw Mistake(fmt::format(
        "this sends {} bytes, and 8 a parameter are enough: squared norms, not gradients", sent));
  }
}

void check(const Answer& answer) {
  for (const double tolerance : {1e-6, 0.0}) {
    zero::exercise::on_all_ranks([&](Communicator& communicator) {
      zero::exercise::in_case(tolerance == 0 ? "level 2" : "level 1", [&] {
        for (const Example& example : kExamples) {
          check_step(answer, communicator, example, tolerance);
        }
      });
    });
  }
}

}  // namespace exercise_01c

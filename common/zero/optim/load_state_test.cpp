// State that was taken out of an optimizer and put into another: it goes on with the same bits.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <zero/base/error.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::optim {
namespace {

using Parameters = std::vector<at::Tensor>;

struct Loaded {
  std::string name;
  OptimizerFactory make;
};

std::vector<Loaded> loaded() {
  return {
      {"AdamW", adamw({.learning_rate = 0.01})},
      {"SGD", sgd({.learning_rate = 0.01})},
      {"SGD without momentum", sgd({.learning_rate = 0.01, .momentum = 0.0})},
      {"torch Adam",
       [](const Parameters& p) { return wrap(std::make_unique<torch::optim::Adam>(p, 0.01)); }},
      {"torch AdamW",
       [](const Parameters& p) { return wrap(std::make_unique<torch::optim::AdamW>(p, 0.01)); }},
      {"torch SGD", [](const Parameters& p) {
         return wrap(
             std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.01).momentum(0.9)));
       }}};
}

void update(Optimizer& optimizer, const at::Tensor& parameter, std::uint64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(step);
  parameter.mutable_grad() = at::randn(parameter.sizes(), generator);
  optimizer.step();
}

at::Tensor start() { return at::ones({5, 7}).requires_grad_(); }

TEST(LoadState, GoesOnWithTheSameBits) {
  for (const Loaded& kind : loaded()) {
    const at::Tensor first = start();
    const auto one = kind.make({first});
    EXPECT_EQ(one->settings().kind, kind.name);
    EXPECT_EQ(one->settings().groups.at(0).at("learning_rate"), 0.01);
    for (int step = 0; step < 3; ++step) update(*one, first, step);

    const at::Tensor second = first.detach().clone().requires_grad_();
    const auto two = kind.make({second});
    std::map<std::string, at::Tensor> states;
    for (const auto& [name, state] : one->state(first)) states[name] = state.clone();
    two->load_state(second, one->steps(first), states);
    EXPECT_EQ(two->steps(second), one->steps(first)) << kind.name;
    update(*one, first, 3);
    update(*two, second, 3);
    EXPECT_TRUE(at::equal(first, second)) << kind.name;
  }
}

TEST(LoadState, OfAParameterThatWasNeverUpdatedIsNone) {
  for (const Loaded& kind : loaded()) {
    const at::Tensor parameter = start();
    const auto optimizer = kind.make({parameter});
    update(*optimizer, parameter, 0);
    optimizer->load_state(parameter, 0, {});
    EXPECT_TRUE(optimizer->state(parameter).empty()) << kind.name;
    EXPECT_EQ(optimizer->steps(parameter), 0) << kind.name;
  }
}

TEST(LoadState, WhatDoesNotFitIsRefusedAndChangesNothing) {
  for (const Loaded& kind : loaded()) {
    const at::Tensor parameter = start();
    const auto optimizer = kind.make({parameter});
    update(*optimizer, parameter, 0);
    const auto before = optimizer->state(parameter);
    EXPECT_THROW(optimizer->load_state(parameter, 1, {{"variance", at::ones({35})}}), Error);
    for (const auto& [name, state] : before) {
      auto wrong = before;
      wrong[name] = at::ones({34});
      EXPECT_THROW(optimizer->load_state(parameter, 1, wrong), Error) << kind.name;
      wrong[name] = at::ones({35}, at::kDouble);
      EXPECT_THROW(optimizer->load_state(parameter, 1, wrong), Error) << kind.name;
    }
    for (const auto& [name, state] : optimizer->state(parameter)) {
      EXPECT_TRUE(at::equal(state, before.at(name))) << kind.name;
    }
  }
  const at::Tensor parameter = start();
  EXPECT_THROW(adamw()({parameter})->load_state(start(), 0, {}), Error) << "it is not held";
}

TEST(LoadState, OptimizersThatHideStateSaySo) {
  const auto rmsprop = wrap(std::make_unique<torch::optim::RMSprop>(Parameters{start()}, 0.01));
  EXPECT_EQ(rmsprop->settings().kind, "");
  EXPECT_THROW(rmsprop->load_state(start(), 0, {}), Error);
  const auto maximum = wrap(std::make_unique<torch::optim::Adam>(
      Parameters{start()}, torch::optim::AdamOptions(0.01).amsgrad(true)));
  EXPECT_EQ(maximum->settings().kind, "");
}

}  // namespace
}  // namespace zero::optim

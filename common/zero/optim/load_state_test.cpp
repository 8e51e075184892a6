// State that was taken out of an optimizer and put into another: it goes on with the same bits.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tests/support/error_of.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::optim {
namespace {

using ::testing::HasSubstr;
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
      {"torch SGD",
       [](const Parameters& p) {
         return wrap(
             std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.01).momentum(0.9)));
       }},
      {"torch AdamW",
       [](const Parameters& p) {
         return wrap(std::make_unique<torch::optim::AdamW>(
             p, torch::optim::AdamWOptions(0.01).amsgrad(true)));
       }},
      {"torch Adagrad",
       [](const Parameters& p) {
         return wrap(std::make_unique<torch::optim::Adagrad>(
             p, torch::optim::AdagradOptions(0.01).lr_decay(0.1)));
       }},
      {"torch RMSprop",
       [](const Parameters& p) { return wrap(std::make_unique<torch::optim::RMSprop>(p, 0.01)); }},
      {"torch RMSprop", [](const Parameters& p) {
         return wrap(std::make_unique<torch::optim::RMSprop>(
             p, torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true)));
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
    for (int step = 3; step < 5; ++step) {
      update(*one, first, step);
      update(*two, second, step);
    }
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

// What is not known is refused before it trains, not when it is saved.
TEST(WrappedOptimizer, IsOneOfFive) {
  struct Own final : torch::optim::SGD {
    using SGD::SGD;
  };
  const std::string supported = "it takes Adagrad, Adam, AdamW, RMSprop and SGD of torch::optim";
  const std::string lbfgs = testing::error_of(
      [] { wrap(std::make_unique<torch::optim::LBFGS>(Parameters{start()}, 0.01)); });
  EXPECT_THAT(lbfgs, HasSubstr("optim::wrap() cannot take torch::optim::LBFGS: " + supported));
  const std::string own =
      testing::error_of([] { wrap(std::make_unique<Own>(Parameters{start()}, 0.01)); });
  EXPECT_THAT(own, HasSubstr("Own: " + supported));
}

}  // namespace
}  // namespace zero::optim

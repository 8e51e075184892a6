// LibTorch's own optimizers behind ours: parameters that are taken away from them are forgotten
// with their state. And state that was taken out of any optimizer and put into another: it goes on
// with the same bits.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/lbfgs.h>

#include <tests/support/error_of.hpp>
#include <tests/support/optimizers.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::optim {
namespace {

using testing::optimizer_kinds;
using testing::OptimizerKind;

std::vector<at::Tensor> parameters() {
  at::Generator generator = at::detail::createCPUGenerator(5);
  std::vector<at::Tensor> all;
  for (const std::int64_t size : {7, 16, 33, 1}) {
    all.push_back(at::randn({size}, generator).set_requires_grad(true));
  }
  return all;
}

void set_gradients(const std::vector<at::Tensor>& parameters, std::uint64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(100 + step);
  for (const at::Tensor& p : parameters) p.mutable_grad() = at::randn(p.sizes(), generator);
}

class Wrapped : public ::testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Wrapped, ::testing::ValuesIn(testing::torch_kinds()),
                         [](const auto& info) { return std::to_string(info.index); });

// The parameters that are kept are updated as if the others had never been there, and the others
// not at all, although they have gradients.
TEST_P(Wrapped, NarrowedUpdatesWhatIsKeptAndNothingElse) {
  const std::vector<at::Tensor> narrowed = parameters(), whole = parameters();
  const auto ours = GetParam().make(narrowed), theirs = GetParam().make(whole);
  const auto kept = [&](const at::Tensor& p) {
    return p.is_same(narrowed[0]) || p.is_same(narrowed[2]);
  };
  ours->narrow(kept);
  for (std::uint64_t s = 0; s < 3; ++s) {
    set_gradients(narrowed, s);
    set_gradients(whole, s);
    ours->step();
    theirs->step();
  }
  const std::vector<at::Tensor> untouched = parameters();
  for (std::size_t i = 0; i < narrowed.size(); ++i) {
    EXPECT_TRUE(at::equal(narrowed[i], kept(narrowed[i]) ? whole[i] : untouched[i])) << i;
    EXPECT_FALSE(at::equal(whole[i], untouched[i])) << i;
    if (!kept(narrowed[i])) {
      EXPECT_TRUE(ours->state(narrowed[i]).empty()) << i;
    }
  }
}

// Narrowed in the middle of training: the state goes, and its bytes.
TEST_P(Wrapped, NarrowedLaterGivesItsStateBack) {
  const std::vector<at::Tensor> all = parameters();
  const auto optimizer = GetParam().make(all);
  const auto held = [] { return memory::snapshot()[memory::Category::kOptimizer]; };
  const std::int64_t before = held();
  set_gradients(all, 0);
  optimizer->step();
  const std::int64_t of_all = held() - before;
  EXPECT_GT(of_all, 0);
  optimizer->narrow([&](const at::Tensor& p) { return p.is_same(all[2]); });
  std::int64_t elements = 0;
  for (const at::Tensor& p : all) elements += p.numel();
  EXPECT_EQ((held() - before) * elements, of_all * all[2].numel());
  optimizer->narrow([](const at::Tensor&) { return false; });
  EXPECT_EQ(held(), before);
  set_gradients(all, 1);
  const at::Tensor value = all[2].detach().clone();
  optimizer->step();
  EXPECT_TRUE(at::equal(all[2], value));
}

// Groups keep their own settings, and stay apart when both lose parameters.
TEST(WrappedOptimizer, GroupsAreNarrowedOneByOne) {
  const std::vector<at::Tensor> p = parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{p[0], p[1]}, std::make_unique<torch::optim::SGDOptions>(0.5));
  groups.emplace_back(std::vector{p[2], p[3]}, std::make_unique<torch::optim::SGDOptions>(0.25));
  const auto optimizer =
      wrap(std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(/*lr=*/9.0)));
  optimizer->narrow([&](const at::Tensor& t) { return t.is_same(p[1]) || t.is_same(p[2]); });
  const std::vector<at::Tensor> before = parameters();
  set_gradients(p, 0);
  optimizer->step();
  EXPECT_TRUE(at::equal(p[0], before[0]));
  EXPECT_TRUE(at::equal(p[1], before[1] - 0.5 * p[1].grad()));
  EXPECT_TRUE(at::equal(p[2], before[2] - 0.25 * p[2].grad()));
  EXPECT_TRUE(at::equal(p[3], before[3]));
  optimizer->set_learning_rate(1.0);
  const at::Tensor value = p[2].detach().clone();
  optimizer->step();
  EXPECT_TRUE(at::equal(p[2], value - p[2].grad()));
}

TEST(WrappedOptimizer, SaysStepsAndMoments) {
  const std::vector<at::Tensor> p = parameters();
  const auto optimizer = wrap(std::make_unique<torch::optim::AdamW>(p, 0.01));
  EXPECT_EQ(optimizer->steps(p[0]), 0);
  EXPECT_TRUE(optimizer->state(p[0]).empty());
  set_gradients(p, 0);
  p[1].mutable_grad().reset();
  optimizer->step();
  EXPECT_EQ(optimizer->steps(p[0]), 1);
  EXPECT_EQ(optimizer->steps(p[1]), 0);
  const auto state = optimizer->state(p[0]);
  ASSERT_EQ(state.size(), 2U);
  EXPECT_TRUE(at::allclose(state.at("exp_avg"), 0.1 * p[0].grad()));
  EXPECT_TRUE(at::allclose(state.at("exp_avg_sq"), 0.001 * p[0].grad().square()));
  optimizer->step();
  EXPECT_EQ(optimizer->steps(p[0]), 2);
}

void update(Optimizer& optimizer, const at::Tensor& parameter, std::uint64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(step);
  parameter.mutable_grad() = at::randn(parameter.sizes(), generator).to(parameter.scalar_type());
  optimizer.step();
}

at::Tensor start(at::ScalarType dtype = at::kFloat) {
  return at::ones({5, 7}, dtype).requires_grad_();
}

TEST(LoadState, GoesOnWithTheSameBits) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    for (const bool masters : {false, true}) {
      const std::string name = kind.name + (masters ? " with master weights" : "");
      SCOPED_TRACE(name);
      const OptimizerFactory make = masters ? with_master_weights(kind.make) : kind.make;
      const at::Tensor first = start(masters ? at::kBFloat16 : at::kFloat);
      const auto one = make({first});
      EXPECT_EQ(one->settings().kind, name);
      EXPECT_EQ(one->settings().groups.at(0).at("learning_rate"), 0.01);
      for (int step = 0; step < 3; ++step) update(*one, first, step);

      const at::Tensor second = first.detach().clone().requires_grad_();
      const auto two = make({second});
      std::map<std::string, at::Tensor> states;
      for (const auto& [state, tensor] : one->state(first)) states[state] = tensor.clone();
      EXPECT_EQ(states.contains("master"), masters);
      two->load_state(second, one->steps(first), states);
      EXPECT_EQ(two->steps(second), one->steps(first));
      for (int step = 3; step < 6; ++step) {
        update(*one, first, step);
        update(*two, second, step);
      }
      EXPECT_TRUE(at::equal(first, second));
      for (const auto& [state, tensor] : one->state(first)) {
        EXPECT_TRUE(at::equal(tensor, two->state(second).at(state))) << state;
      }
      EXPECT_EQ(one->steps(first), two->steps(second));
    }
  }
}

TEST(LoadState, WhatDoesNotFitIsRefusedAndChangesNothingAndNoneIsThatOfAStart) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
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
    optimizer->load_state(parameter, 0, {});
    EXPECT_TRUE(optimizer->state(parameter).empty()) << kind.name;
    EXPECT_EQ(optimizer->steps(parameter), 0) << kind.name;
  }
  const at::Tensor parameter = start();
  EXPECT_THROW(adamw()({parameter})->load_state(start(), 0, {}), Error) << "it is not held";
}

// What is not known is refused before it trains, not when it is saved.
TEST(WrappedOptimizer, IsOneOfFive) {
  struct Own final : torch::optim::SGD {
    using SGD::SGD;
  };
  const std::vector<at::Tensor> parameters = {start()};
  const std::string supported = ": it takes Adagrad, Adam, AdamW, RMSprop and SGD of torch::optim";
  testing::expect_error([&] { wrap(std::make_unique<torch::optim::LBFGS>(parameters, 0.01)); },
                        {"optim::wrap() cannot take torch::optim::LBFGS" + supported});
  testing::expect_error([&] { wrap(std::make_unique<Own>(parameters, 0.01)); },
                        {"Own" + supported});
}

}  // namespace
}  // namespace zero::optim

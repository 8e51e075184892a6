// LibTorch's own optimizers behind ours: the same updates as by themselves, and parameters that are
// taken away from them are forgotten with their state.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tests/support/ranks.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::optim {
namespace {

using testing::on_ranks;

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

using Maker = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<at::Tensor>);

std::unique_ptr<torch::optim::Optimizer> adam(std::vector<at::Tensor> p) {
  return std::make_unique<torch::optim::Adam>(std::move(p), 0.01);
}
std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<at::Tensor> p) {
  return std::make_unique<torch::optim::AdamW>(std::move(p), 0.01);
}
std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<at::Tensor> p) {
  return std::make_unique<torch::optim::SGD>(std::move(p),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> rmsprop(std::vector<at::Tensor> p) {
  return std::make_unique<torch::optim::RMSprop>(std::move(p), 0.01);
}
std::unique_ptr<torch::optim::Optimizer> amsgrad(std::vector<at::Tensor> p) {
  return std::make_unique<torch::optim::AdamW>(std::move(p),
                                               torch::optim::AdamWOptions(0.01).amsgrad(true));
}
std::unique_ptr<torch::optim::Optimizer> adagrad(std::vector<at::Tensor> p) {
  return std::make_unique<torch::optim::Adagrad>(
      std::move(p), torch::optim::AdagradOptions(0.01).initial_accumulator_value(0.1));
}

class Wrapped : public ::testing::TestWithParam<std::pair<const char*, Maker>> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Wrapped,
                         ::testing::Values(std::pair{"Adam", &adam}, std::pair{"AdamW", &adamw},
                                           std::pair{"SGD", &sgd}, std::pair{"RMSprop", &rmsprop},
                                           std::pair{"Amsgrad", &amsgrad},
                                           std::pair{"Adagrad", &adagrad}),
                         [](const auto& info) { return info.param.first; });

// The parameters that are kept are updated as if the others had never been there, and the others
// not at all, although they have gradients.
TEST_P(Wrapped, NarrowedUpdatesWhatIsKeptAndNothingElse) {
  on_ranks(1, [](dist::Communicator&) {
    const std::vector<at::Tensor> narrowed = parameters(), whole = parameters();
    const auto ours = wrap(GetParam().second(narrowed));
    const auto theirs = GetParam().second(whole);
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
  });
}

// Narrowed in the middle of training: the state goes, and its bytes.
TEST_P(Wrapped, NarrowedLaterGivesItsStateBack) {
  on_ranks(1, [](dist::Communicator&) {
    const std::vector<at::Tensor> all = parameters();
    const auto optimizer = wrap(GetParam().second(all));
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
  });
}

// Groups keep their own settings, and stay apart when both lose parameters.
TEST(WrappedOptimizer, GroupsAreNarrowedOneByOne) {
  on_ranks(1, [](dist::Communicator&) {
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
  });
}

TEST(WrappedOptimizer, SaysStepsAndMoments) {
  on_ranks(1, [](dist::Communicator&) {
    const std::vector<at::Tensor> p = parameters();
    const auto optimizer = wrap(adamw(p));
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
    double loss = 0;
    loss = optimizer->step([&] { return at::full({}, 4.5); }).item<double>();
    EXPECT_EQ(loss, 4.5);
    EXPECT_EQ(optimizer->steps(p[0]), 2);
  });
}

}  // namespace
}  // namespace zero::optim

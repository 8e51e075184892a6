// A checkpointed part beside the same part without: bits of results and gradients, when gradients
// are ready, and hooks of units.

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <tests/support/tensors.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::identical;
using testing::leaf_of;
using testing::random;

// Two layers: one that writes its gradient in place, one of ordinary autograd.
struct TwoLayers {
  at::Tensor weight = random({6, 6}, 1, /*gradient=*/true);
  at::Tensor gain = random({6}, 2, /*gradient=*/true);
  int runs = 0;

  at::Tensor plain(const at::Tensor& x) { return (nn::linear(x, weight) * gain).tanh() + x; }
  at::Tensor checkpointed(const at::Tensor& x) {
    return checkpoint(
        [this](const std::vector<at::Tensor>& inputs) {
          ++runs;
          return plain(inputs.front());
        },
        {x});
  }
  void expect_gradients_of(const TwoLayers& other) const {
    EXPECT_TRUE(identical(weight.grad(), other.weight.grad()));
    EXPECT_TRUE(identical(gain.grad(), other.gain.grad()));
  }
};

TEST(ActivationCheckpoint, GivesTheBitsOfThePartWithoutAndRunsOnceMore) {
  TwoLayers with, without;
  const at::Tensor x = random({4, 6}, 3, /*gradient=*/true), y = leaf_of(x);
  const at::Tensor a = with.checkpointed(x), b = without.plain(y);
  EXPECT_TRUE(identical(a, b));
  EXPECT_EQ(with.runs, 1);
  a.square().sum().backward();
  b.square().sum().backward();
  EXPECT_EQ(with.runs, 2);
  EXPECT_TRUE(identical(x.grad(), y.grad()));
  with.expect_gradients_of(without);
}

// If no input needs a gradient, the usual construction trains nothing and reports no error.
// The second pass adds to the gradients that are there.
TEST(ActivationCheckpoint, TrainsParametersWhereNoInputNeedsAGradient) {
  TwoLayers with, without;
  for (const std::uint64_t seed : {3, 4}) {
    const at::Tensor x = random({4, 6}, seed);
    with.checkpointed(x).square().sum().backward();
    without.plain(x).square().sum().backward();
    with.expect_gradients_of(without);
    EXPECT_FALSE(x.grad().defined());
  }
}

TEST(ActivationCheckpoint, RequiresNoGradientWhereNothingInItDoesOrWithoutAGraph) {
  TwoLayers frozen;
  {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(frozen.checkpointed(random({4, 6}, 3, true)).requires_grad());
    EXPECT_EQ(frozen.runs, 1);
  }
  frozen.weight.requires_grad_(false);
  frozen.gain.requires_grad_(false);
  EXPECT_FALSE(frozen.checkpointed(random({4, 6}, 3)).requires_grad());
  const at::Tensor x = random({4, 6}, 3, /*gradient=*/true), y = leaf_of(x);
  frozen.checkpointed(x).sum().backward();
  frozen.plain(y).sum().backward();
  EXPECT_TRUE(identical(x.grad(), y.grad()));
  EXPECT_FALSE(frozen.weight.grad().defined());
}

TEST(ActivationCheckpoint, MayGiveItsInputOrAParameterItself) {
  const at::Tensor x = random({3}, 1, /*gradient=*/true), p = random({3}, 2, /*gradient=*/true);
  checkpoint([](const auto& inputs) { return inputs[0]; }, {x}).sum().backward();
  EXPECT_TRUE(identical(x.grad(), at::ones_like(x).detach()));
  checkpoint([&p](const auto&) { return p; }, {x}).sum().backward();
  EXPECT_TRUE(identical(p.grad(), at::ones_like(p).detach()));
}

TEST(ActivationCheckpoint, TakesSeveralInputsOfWhichSomeNeedAGradientAndSomeAreUnused) {
  const at::Tensor a = random({3}, 1, true), b = random({3}, 2), c = random({3}, 3, true);
  const at::Tensor ids = at::arange(3), unused = random({3}, 4, true);
  const at::Tensor p = random({3}, 5, true);
  checkpoint([&p](const auto& in) { return in[0] * in[1] * in[2].index({in[3]}) * p; },
             {a, b, c, ids, unused})
      .sum()
      .backward();
  EXPECT_TRUE(testing::close_to(a.grad(), (b * c * p).detach()));
  EXPECT_TRUE(testing::close_to(c.grad(), (a * b * p).detach()));
  EXPECT_TRUE(testing::close_to(p.grad(), (a * b * c).detach()));
  EXPECT_FALSE(unused.grad().defined());
}

// Used in two checkpoints, outside of any, and in checkpoints within one: callbacks and hooks of
// the program, before and after a gradient is added, are called once, when the gradient is whole.
TEST(ActivationCheckpoint, GradientIsReadyOnceAfterTheLastUseWhereverItIs) {
  struct Count : torch::autograd::PostAccumulateGradHook {
    explicit Count(int& calls) : calls(calls) {}
    void operator()(const at::Tensor&) override { ++calls; }
    int& calls;
  };
  const at::Tensor x = random({4, 6}, 3);
  for (const auto& [outside, nested] : {std::pair{false, false}, {true, false}, {false, true}}) {
    SCOPED_TRACE(fmt::format("outside {}, nested {}", outside, nested));
    TwoLayers with, without;
    int before = 0, after = 0;
    for (const TwoLayers* layers : {&with, &without}) {
      for (const at::Tensor& p : {layers->weight, layers->gain}) {
        p.register_hook([&before](const at::Tensor& gradient) {
          ++before;
          return gradient.clamp(-1, 2);
        });
        torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<Count>(after));
      }
    }
    std::vector<at::Tensor> seen;
    on_gradient_ready(with.weight, [&] { seen.push_back(with.weight.grad().clone()); });
    const CheckpointBody twice = [&](const auto& in) {
      return with.checkpointed(with.checkpointed(in[0]));
    };
    for (std::size_t pass = 1; pass <= 2; ++pass) {
      const at::Tensor a = outside ? with.plain(x) : x, b = outside ? without.plain(x) : x;
      (nested ? checkpoint(twice, {a}) : twice({a})).square().sum().backward();
      without.plain(without.plain(b)).square().sum().backward();
      EXPECT_EQ(std::exchange(before, 0), 4);
      EXPECT_EQ(std::exchange(after, 0), 4);
      with.expect_gradients_of(without);
      ASSERT_EQ(seen.size(), pass);
      EXPECT_TRUE(identical(seen.back(), without.weight.grad()));
    }
  }
}

TEST(ActivationCheckpoint, CallbacksSpeakAgainAfterABodyThatThrewInBackward) {
  TwoLayers layers;
  int calls = 0;
  on_gradient_ready(layers.weight, [&] { ++calls; });
  int runs = 0;
  const at::Tensor y = checkpoint(
      [&](const auto& inputs) {
        if (++runs == 2) throw Error("not twice");
        return layers.plain(inputs[0]);
      },
      {random({4, 6}, 3)});
  EXPECT_EQ(error_of([&] { y.sum().backward(); }), "not twice");
  layers.checkpointed(random({4, 6}, 3)).sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(ActivationCheckpoint, GradOfInputsLeavesParametersAlone) {
  TwoLayers with, without;
  const at::Tensor x = random({4, 6}, 3, true), y = leaf_of(x);
  const auto a = torch::autograd::grad({with.checkpointed(x).square().sum()}, {x});
  const auto b = torch::autograd::grad({without.plain(y).square().sum()}, {y});
  EXPECT_TRUE(identical(a[0], b[0]));
  EXPECT_FALSE(with.weight.grad().defined());
  EXPECT_FALSE(with.gain.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(ActivationCheckpoint, SaysWhatItCannotDo) {
  const CheckpointBody same = [](const std::vector<at::Tensor>& inputs) { return inputs[0]; };
  const at::Tensor x = random({3}, 1, true), outside = x * 2;
  const std::vector<at::Tensor> undefined = {x, at::Tensor()};
  testing::expect_error([&] { checkpoint(same, {}); }, {"at least one input"});
  testing::expect_error([&] { checkpoint(same, undefined); },
                        {"input 1 of a checkpoint is undefined"});
  testing::expect_error([&] { checkpoint([&](const auto& in) { return in[0] * outside; }, {x}); },
                        {"neither one of its inputs nor a parameter"});
  const at::Tensor y = checkpoint([](const auto& in) { return in[0].square(); }, {x}).sum();
  testing::expect_error([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); },
                        {"'checkpoint' cannot be differentiated twice"});
}

// The same mask in the second run, and numbers drawn by others, between the runs and afterwards, as
// without a checkpoint.
TEST(ActivationCheckpoint, DropoutDrawsTheSameMaskAgainAndLeavesNumbersOfOthersAlone) {
  const auto train = [](bool checkpointed) {
    at::manual_seed(7);
    const at::Tensor x = random({8, 6}, 3, /*gradient=*/true);
    const CheckpointBody body = [](const std::vector<at::Tensor>& inputs) {
      const at::Tensor noise = at::randn({6}, at::kDouble);  // keeps one number for later
      return at::dropout(inputs.front().square() * noise, 0.5, /*train=*/true);
    };
    at::Tensor y = checkpointed ? checkpoint(body, {x}) : body({x});
    y = checkpointed ? checkpoint(body, {y}) : body({y});
    const at::Tensor between = at::randn({7});
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), between, at::randn({3}), at::rand({5})};
  };
  const std::vector<at::Tensor> with = train(true), without = train(false);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(identical(with[i], without[i])) << i;
}

TEST(ActivationCheckpoint, RunsAgainUnderTheSameAutocast) {
  const at::Tensor x = random({4, 6}, 3, /*gradient=*/true, at::kFloat);
  const at::Tensor weight = random({6, 6}, 1, /*gradient=*/true, at::kFloat);
  std::vector<at::ScalarType> types;
  std::vector<bool> on_other_devices;
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_enabled(at::kPrivateUse1, true);
  const at::Tensor y = checkpoint(
      [&](const std::vector<at::Tensor>& inputs) {
        const at::Tensor product = inputs.front().matmul(weight);
        types.push_back(product.scalar_type());
        on_other_devices.push_back(at::autocast::is_autocast_enabled(at::kPrivateUse1));
        return product;
      },
      {x});
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
  y.sum().backward();
  EXPECT_THAT(types, ElementsAre(at::kBFloat16, at::kBFloat16));
  EXPECT_THAT(on_other_devices, ElementsAre(true, true));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kPrivateUse1));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// As a loop does that keeps autocast on for its update too: the cache has the weight of before.
TEST(ActivationCheckpoint, RunsAgainWithTheWeightOfNowUnderAutocast) {
  const at::Tensor x = random({4, 6}, 3, /*gradient=*/true, at::kFloat), y = leaf_of(x);
  const at::Tensor weight = random({6, 6}, 1, /*gradient=*/true, at::kFloat);
  const at::Tensor next = random({6, 6}, 2, /*gradient=*/true, at::kFloat);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor product = checkpoint(
      [&](const std::vector<at::Tensor>& inputs) { return inputs.front().matmul(weight); }, {x});
  weight.detach().copy_(next.detach());
  product.sum().backward();
  y.matmul(next).sum().backward();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(identical(x.grad(), y.grad()));
}

}  // namespace
}  // namespace zero::nn

// What a program may see and change of the averaged gradients of a step, and weights of which some
// are missing or left over.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <limits>

#include <tests/plain/plain_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

const std::string kWeight = "2.weight";  // 18 x 16: no multiple of a shard

PlainModule layers(std::int64_t outputs) {
  at::manual_seed(3);
  const Sequential net(Linear(8, 16), torch::nn::Tanh(), Linear(16, outputs));
  return {net.ptr(), [net = net]() mutable {
            return net->forward(at::randn({4, 8})).square().mean();
          }};
}

struct OneRank : PlainRun {
  OneRank(dist::Communicator& communicator, const EngineConfig& config, std::int64_t outputs = 18)
      : PlainRun(communicator, layers(outputs), config, optim::adamw({.learning_rate = 0.01})) {}
};

std::vector<EngineConfig> configurations(const dist::Communicator& communicator) {
  std::vector<EngineConfig> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({.stage = stage, .accumulation_steps = 2, .clip_norm = 0.5});
  }
  if (communicator.size() == 4) {  // two groups: sums are taken in another order
    all.push_back({.stage = 3, .shard_size = 2, .accumulation_steps = 2, .clip_norm = 0.5});
  }
  return all;
}

ZERO_TESTS_ON_RANKS(GradientsOfAStep, 1, 2, 3, 4);

// At stage 0 `.grad` is the average, and a program may change it: that is the measure.
TEST_P(GradientsOfAStep, AreSeenWholeAndChangedInPartsAtEveryStage) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    std::vector<at::Tensor> gradients, end;
    {
      OneRank run(communicator, {.stage = 0, .accumulation_steps = 2, .clip_norm = 0.5});
      for (int number = 0; number < 4; ++number) {
        run.backward(number);
        if (number % 2 == 0) continue;
        const at::NoGradGuard no_grad;
        at::Tensor gradient = run.made.module->named_parameters()[kWeight].grad();
        gradient.view({-1}).narrow(0, 37, 200).mul_(0.25);
        gradients.push_back(gradient.clone());
        run.engine.step();
      }
      end = run.weights();
    }
    for (const EngineConfig& config : configurations(communicator)) {
      SCOPED_TRACE(base::text_of(config));
      OneRank run(communicator, config);
      run.engine.on_gradients(
          [](const std::string& name, const at::Tensor& gradient, std::int64_t begin) {
            if (name != kWeight) return;
            at::Tensor mask = at::ones({18 * 16});
            mask.narrow(0, 37, 200).fill_(0.25);
            gradient.mul_(mask.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
          });
      for (int number = 0; number < 4; ++number) {
        run.backward(number);
        if (number % 2 == 1) {
          const at::Tensor& right = gradients[static_cast<std::size_t>(number / 2)];
          const at::Tensor mine = run.engine.gradient(kWeight);
          EXPECT_TRUE(config.shard_size > 0 ? at::allclose(mine, right) : at::equal(mine, right));
        }
        run.engine.step();
      }
      if (config.shard_size == 0) EXPECT_TRUE(same_bits(run.weights(), end));
    }
  });
}

TEST(GradientsThatAreChanged, AreCheckedAfterwardsAndEveryRankHearsOfAnException) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 3}) {
      for (const double clip_norm : {0.0, 1.0}) {
        OneRank run(communicator, {.stage = stage, .clip_norm = clip_norm});
        bool throws = false;
        run.engine.on_gradients(
            [&](const std::string& name, const at::Tensor& gradient, std::int64_t begin) {
              if (throws && communicator.rank() == 1) throw Error("a mask of another size");
              if (!throws && name == "0.bias" && begin == 0) {
                gradient.view({-1})[0].fill_(std::numeric_limits<double>::infinity());
              }
            });
        run.backward(0);
        expect_error([&] { run.engine.step(); }, {"gradient of '0.bias' is infinite or NaN"});
        throws = true;
        expect_error([&] { run.backward(1); },
                     {"the callback of on_gradients()", "rank 1", "a mask of another size"});
        run.engine.give_up_step();
        run.engine.on_gradients({});
        run.backward(2);
        EXPECT_TRUE(run.engine.step());
      }
    }
  });
}

TEST(GradientsOfOtherTimes, AreRefused) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    OneRank run(communicator, {.stage = 2, .accumulation_steps = 2});
    const auto gradient = [&](const std::string& name) {
      return [&run, name] { run.engine.gradient(name); };
    };
    expect_error(gradient(kWeight), {"gradient('2.weight') after 0 of 2 micro-batches"});
    run.backward(0);
    expect_error(gradient(kWeight), {"after 1 of 2 micro-batches"});
    run.backward(1);
    expect_error(gradient("3.weight"), {"no trainable parameter '3.weight'"});
    expect_error([&] { run.engine.on_gradients({}); }, {"on_gradients() in the middle of a step"});
    EXPECT_TRUE(run.engine.step());
    const bool passes = communicator.rank() == 0;
    expect_error(
        [&] {
          run.engine.on_gradients(passes ? GradientCallback([](auto&, auto&, auto) {})
                                         : GradientCallback());
        },
        {"ranks disagree about on_gradients()"});
    OneRank offloaded(communicator, {.stage = 2, .offload = folder.path().string()});
    expect_error([&] { offloaded.engine.on_gradients([](auto&, auto&, auto) {}); }, {"offload"});
    offloaded.backward(0);
    expect_error([&] { offloaded.engine.gradient(kWeight); }, {"offload"});
  });
  const auto exits = ranks_ended({.world_size = 2}, [](dist::Communicator& communicator) {
    OneRank run(communicator, {.stage = 2}, /*outputs=*/16);
    run.backward(0);
    run.engine.gradient(communicator.rank() == 0 ? "0.bias" : "2.bias");
  });
  expect_errors(
      exits, ::testing::AllOf(::testing::HasSubstr("'0.bias'"), ::testing::HasSubstr("'2.bias'")));
}

TEST(WeightsThatDoNotFit, AreReturnedIfTheyMayBe) {
  on_ranks(2, [](dist::Communicator& communicator) {
    OneRank source(communicator, {.stage = 3});
    source.backward(0);
    source.engine.step();
    safetensors::NamedTensors some;
    for (const auto& [name, tensor] : io::state_dict(source.engine.strategy())) {
      if (name != "2.bias") some.emplace_back(name, tensor);
    }
    if (communicator.rank() == 0) some.emplace_back("lora.a", at::ones({2}));
    for (const int stage : {0, 3}) {
      OneRank run(communicator, {.stage = stage});
      const std::vector<at::Tensor> before = run.weights();
      expect_error([&] { run.engine.load_weights(some, {.missing = {"2.bias"}}); }, {"lora.a"});
      expect_error([&] { run.engine.load_weights(some, {.left_over = {"lora.a"}}); }, {"2.bias"});
      EXPECT_TRUE(same_bits(run.weights(), before));
      const io::WeightsFit fit = run.engine.load_weights(
          some, {.missing = {"2.bias", "2.weight"}, .left_over = {"lora.a", "lora.b"}});
      EXPECT_EQ(fit.missing, std::vector<std::string>{"2.bias"});
      EXPECT_EQ(fit.left_over, std::vector<std::string>{"lora.a"});
      std::vector<at::Tensor> right = source.weights();
      right.back() = before.back();
      EXPECT_TRUE(same_bits(run.weights(), right));
    }
    // A longer vocabulary is no tensor that may be missing.
    OneRank longer(communicator, {.stage = 3}, /*outputs=*/20);
    expect_error(
        [&] {
          longer.engine.load_weights(some, {.missing = {"2.weight", "2.bias"}});
        },
        {"2.weight", "[18, 16]", "[20, 16]"});
  });
}

}  // namespace
}  // namespace zero::testing

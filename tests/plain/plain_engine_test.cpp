// The engine over a module that knows nothing of it: which units there are, and how it watches what
// they read. What holds for models of units too is in tests/engine.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_communicator.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/thrown_by.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <tools/models/mlp.hpp>
#include <zero/memory/accounting.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

// Three units as large, and a root that is small beside them.
struct Wide : torch::nn::Module {
  static constexpr std::int64_t kWidth = 512;
  Wide() {
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(kWidth, 1));
  }
  torch::nn::LinearImpl& linear(std::size_t i) { return *layers[i]->as<torch::nn::Linear>(); }
  at::Tensor loss(at::Tensor x = at::randn({4, kWidth})) {
    for (std::size_t i = 0; i < layers->size(); ++i) x = linear(i).forward(x).tanh();
    return head(x).square().mean();
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
};

ZERO_TESTS_ON_RANKS(PlainEngineOnRanks, 2, 3, 4);

TEST_P(PlainEngineOnRanks, HoldsItsShardsTheRootAndTheUnitsThatRun) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int lookahead : {0, 1}) {
      SCOPED_TRACE(lookahead);
      Wide net;
      Engine engine(net, communicator, optim::adamw(), {.stage = 3, .lookahead = lookahead});
      const auto before = memory::snapshot()[memory::Category::kParameters];
      for (int number = 0; number < 3; ++number) {
        if (number == 2) memory::reset_peaks();  // the order of units is known
        engine.backward(engine.forward([&] { return net.loss(); }));
        engine.step();
      }
      const std::int64_t unit = 4 * Wide::kWidth * (Wide::kWidth + 1);
      const std::int64_t root = 4 * (Wide::kWidth + 1);
      const auto peak =
          memory::snapshot().peak[static_cast<std::size_t>(memory::Category::kParameters)];
      const auto expected = static_cast<double>(before + root + (1 + lookahead) * unit);
      EXPECT_NEAR(static_cast<double>(peak), expected, expected / 100);
      EXPECT_NEAR(static_cast<double>(before), (3. * unit + root) / communicator.size(),
                  unit / 100.);
    }
  });
}

// What `run` says, with the generator seeded alike, must be the same at stages 0 and 3.
void expect_same_at_stages_0_and_3(
    const std::function<std::vector<at::Tensor>(Wide&, Engine&, dist::Communicator&)>& run) {
  on_ranks(2, [&](dist::Communicator& communicator) {
    std::vector<at::Tensor> first;
    for (const int stage : {0, 3}) {
      at::manual_seed(7);
      Wide net;
      Engine engine(net, communicator, optim::adamw(), at_stage(stage));
      std::vector<at::Tensor> said;
      ASSERT_EQ(thrown_by([&] { said = run(net, engine, communicator); }), "") << "stage " << stage;
      if (stage == 0) first = said;
      EXPECT_TRUE(same_bits(said, first));
    }
  });
}

// Its gradients are ready, so that its parameters are released, before the backward of the
// operation that reads the weight's values alone.
TEST(PlainEngine, GathersAUnitAgainThatItsOwnBackwardReadsOnceMore) {
  expect_same_at_stages_0_and_3([](Wide& net, Engine& engine, dist::Communicator& communicator) {
    at::manual_seed(communicator.rank());
    engine.backward(engine.forward([&] {
      const at::Tensor x = net.linear(0).forward(at::randn({4, Wide::kWidth})).tanh();
      const at::Tensor y = at::linear(x, net.linear(1).weight.detach()).tanh();
      return net.head(net.linear(1).forward(y)).square().mean();
    }));
    engine.step();
    return whole_weights(engine.strategy());
  });
}

// Without a graph an operation may read several units, of which some run already.
TEST(PlainEngine, EvaluatesAnOperationOnTheRunningUnitAndAnother) {
  expect_same_at_stages_0_and_3([](Wide& net, Engine& engine, dist::Communicator&) {
    const at::Tensor x = at::randn({4, Wide::kWidth});
    return std::vector{engine.evaluate([&] {
      return at::linear(net.linear(0).forward(x), net.linear(0).weight, net.linear(1).bias);
    })};
  });
}

TEST(PlainEngine, AnotherBackwardHasTheWeightsOfAnOperationWithAListOfOutputs) {
  expect_same_at_stages_0_and_3([](Wide& net, Engine& engine, dist::Communicator&) {
    const at::Tensor x = at::ones({Wide::kWidth}).requires_grad_(true);
    const at::Tensor loss = engine.forward([&] {
      const std::vector<at::Tensor> left = {x}, right = {net.linear(0).bias};
      return at::_foreach_mul(left, right).front().sum();
    });
    return torch::autograd::grad({loss}, {x});
  });
}

// A callback of at::RecordFunction sees each operation, and costs time.
TEST(PlainEngine, WatchesNoOperationBelowStage3) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    Wide net;
    Engine engine(net, communicator, optim::adamw(), {.stage = stage});
    std::vector<bool> watched;
    const auto note = [&] { watched.push_back(at::hasThreadLocalCallbacks()); };
    engine.backward(engine.forward([&] {
      const at::Tensor loss = net.loss();
      note();
      loss.register_hook([&](const at::Tensor&) { note(); });
      return loss;
    }));
    engine.step();
    note();
    EXPECT_EQ(watched, (std::vector<bool>{stage == 3, stage == 3, false}));
  });
}

TEST(PlainEngine, NamesItsUnits) {
  on_ranks(1, [](dist::Communicator& communicator) {
    PlainRun run(communicator, "gpt2", {.stage = 3});
    const std::string units = run.engine.units();
    for (const char* name : {"(the root)", "blocks.0 ", "blocks.2 ", "norm "}) {
      EXPECT_THAT(units, HasSubstr(name));
    }
    EXPECT_THAT(units, ::testing::Not(HasSubstr("blocks.0.qkv")));
  });
}

TEST(PlainEngine, RefusesUnitsThatAreNotThereOrDiffer) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto engine_of = [&](const nn::UnitRule& units) {
      const PlainModule made = PlainRun::make("gpt2");
      const Engine engine(*made.module, communicator, optim::adamw(), {.stage = 3}, units);
    };
    expect_error([&] { engine_of(nn::units_named({"blocks.*", "block"})); }, {"'block'"});
    const bool first = communicator.rank() == 0;
    // On one rank only: an error on both.
    expect_error([&] { engine_of(nn::units_named({first ? "block" : "blocks.*"})); }, {"'block'"});
    expect_error([&] { engine_of(nn::units_named({first ? "blocks.0" : "blocks.*"})); },
                 {"blocks.1"});
  });
}

TEST(PlainEngine, RefusesAnOperationOnTwoUnitsByName) {
  on_ranks(2, [](dist::Communicator& communicator) {
    PlainRun run(communicator, "used_twice", {.stage = 3});
    const auto parameters = run.made.module->parameters();
    expect_error(
        [&] {
          run.engine.forward([&] { return at::stack({parameters[0], parameters[2]}).sum(); });
        },
        {"aten::stack", "one unit"});
    run.engine.give_up_step();
    EXPECT_TRUE(run.step(0));  // the next step trains
  });
}

}  // namespace
}  // namespace zero::testing

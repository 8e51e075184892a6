// A plain module that is not what the engine was made with, or that another engine has.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <zero/engine.hpp>

namespace zero::testing {
namespace {

struct TwoLayers : torch::nn::Module {
  at::Tensor loss() { return last(first(at::ones({2, 4})).tanh()).square().mean(); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 3));
};

void train_once(Engine& engine, TwoLayers& net) {
  engine.backward(engine.forward([&] { return net.loss(); }));
  engine.step();
}

TEST(ChangedModule, IsAnErrorOfBackwardOnAllRanks) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    const std::vector<std::function<void(TwoLayers&)>> changes = {
        [](TwoLayers& net) { net.last = net.replace_module("last", torch::nn::Linear(8, 3)); },
        [](TwoLayers& net) { net.register_parameter("scale", at::ones({1})); },
        [](TwoLayers& net) { net.unregister_module("first"); }};
    for (const auto& change : changes) {
      TwoLayers net;
      Engine engine(net, communicator, optim::adamw(), {.stage = stage}, nn::default_units(1));
      train_once(engine, net);
      if (communicator.rank() == 1 || stage == 3) change(net);
      expect_error([&] { train_once(engine, net); },
                   {"added, replaced or taken out", stage == 3 ? "ranks 0, 1" : "rank 1"});
    }
  });
}

TEST(HeldModule, IsRefusedOnAllRanksUntilItIsReleased) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    TwoLayers net;
    std::optional<Engine> engine;
    const auto make = [&](std::optional<Engine>& into) {
      into.emplace(net, communicator, optim::adamw(), EngineConfig{.stage = stage});
    };
    make(engine);
    std::optional<Engine> second;
    expect_error([&] { make(second); }, {fmt::format("held by engine{}", stage), "release()"});
    engine->release();
    make(second);
    train_once(*second, net);
    second.reset();
    expect_error([&] { make(second); }, {"destroyed without release()", "anew"});
  });
}

}  // namespace
}  // namespace zero::testing

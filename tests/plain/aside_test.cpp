// What a program does aside of its training: a scope in the middle of a forward, a hook on one rank
// that only looks. Nothing may change by it, and no rank may wait for another.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <tests/support/ranks.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(Aside, 1, 2, 3);

struct AsideNet : torch::nn::Module {
  AsideNet() {
    for (int l = 0; l < 3; ++l) layers->push_back(torch::nn::Linear(8, 8));
    register_module("layers", layers);
  }
  // `aside` is called after each layer.
  at::Tensor loss(at::Tensor x, const std::function<void()>& aside) {
    for (const auto& layer : *layers) {
      x = layer->as<torch::nn::Linear>()->forward(x).tanh();
      if (aside) aside();
    }
    return x.square().mean();
  }
  torch::nn::ModuleList layers;
};

struct AsideRun {
  AsideRun(dist::Communicator& communicator, const EngineConfig& config)
      : rank(communicator.rank()), engine(net, communicator, wrapped_adamw, config) {}
  static AsideNet seeded() {
    at::manual_seed(7);
    return {};
  }
  // The weights after three steps.
  std::vector<at::Tensor> trained(const std::function<void()>& aside = {}) {
    for (int number = 0; number < 3; ++number) {
      at::manual_seed(100 * number + rank);
      const at::Tensor x = at::randn({3, 8});
      engine.backward(engine.forward([&] { return net.loss(x, aside); }));
      EXPECT_TRUE(engine.step());
    }
    return whole_weights(engine.strategy());
  }
  int rank;
  AsideNet net = seeded();
  Engine engine;
};

// Calls `body` with a run and the weights of another one.
void on_all_runs(int ranks,
                 const std::function<void(AsideRun&, const std::vector<at::Tensor>&)>& body) {
  on_ranks(ranks, [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::int64_t bucket : {100, 1 << 20}) {  // several in a unit, and one
        const EngineConfig config{.stage = stage, .bucket_bytes = bucket};
        SCOPED_TRACE(base::text_of(config));
        const std::vector<at::Tensor> expected = AsideRun(communicator, config).trained();
        AsideRun run(communicator, config);
        body(run, expected);
      }
    }
  });
}

// What the scope itself does to parameters is no read of the forward, which it would be on some
// ranks only.
TEST_P(Aside, AScopeInAForwardChangesNothing) {
  on_all_runs(GetParam(), [](AsideRun& run, const std::vector<at::Tensor>& expected) {
    EXPECT_TRUE(same_bits(
        run.trained([&] { train::UnshardedParameters(run.engine.strategy(), /*unit=*/2); }),
        expected));
  });
}

// A hook on one rank takes the place of the engine's own, until the next backward.
TEST_P(Aside, AHookOfOneRankThatOnlyLooksChangesNothing) {
  struct Looks final : torch::autograd::PostAccumulateGradHook {
    void operator()(const at::Tensor&) override {}
  };
  on_all_runs(GetParam(), [](AsideRun& run, const std::vector<at::Tensor>& expected) {
    if (run.rank == 0) {
      torch::autograd::impl::set_post_acc_grad_hooks(run.net.parameters().back(),
                                                     std::make_unique<Looks>());
    }
    EXPECT_TRUE(same_bits(run.trained(), expected));
  });
}

}  // namespace
}  // namespace zero::testing

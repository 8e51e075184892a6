// What a program does aside of its training: a scope in the middle of a forward, a hook on one rank
// that only looks. Nothing may change by it, and no rank may wait for another.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <tests/support/ranks.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(Aside, 1, 2, 3);

// The weights after three steps; `prepare` is called once, `in_forward` in each forward.
using Does = std::function<void(PlainRun&)>;
std::vector<at::Tensor> trained(dist::Communicator& communicator, const EngineConfig& config,
                                const Does& prepare, const Does& in_forward) {
  PlainRun run(communicator, "gpt2", config);
  if (prepare) prepare(run);
  for (int number = 0; number < 3; ++number) {
    at::manual_seed(100 * number + run.rank);
    run.engine.backward(run.engine.forward([&] {
      if (in_forward) in_forward(run);
      return run.made.loss();
    }));
    EXPECT_TRUE(run.engine.step());
  }
  return run.weights();
}

void expect_no_change(int ranks, const Does& prepare, const Does& in_forward) {
  on_ranks(ranks, [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::int64_t bucket : {1 << 9, 1 << 20}) {
        const EngineConfig config{.overlap = {.stage = stage, .bucket_bytes = bucket}};
        EXPECT_TRUE(same_bits(trained(communicator, config, prepare, in_forward),
                              trained(communicator, config, {}, {})))
            << mode_options(config);
      }
    }
  });
}

// What the scope itself does to parameters of several buckets is no read of the forward.
TEST_P(Aside, AScopeInAForwardChangesNothing) {
  expect_no_change(GetParam(), {}, [](PlainRun& run) {
    train::UnshardedParameters(run.engine.strategy(), /*unit=*/1);
  });
}

// It takes the place of the engine's own, until the next backward, on one rank.
TEST_P(Aside, AHookOfOneRankThatOnlyLooksChangesNothing) {
  struct Looks final : torch::autograd::PostAccumulateGradHook {
    void operator()(const at::Tensor&) override {}
  };
  expect_no_change(
      GetParam(),
      [](PlainRun& run) {
        if (run.rank > 0) return;
        torch::autograd::impl::set_post_acc_grad_hooks(run.made.module->parameters().back(),
                                                       std::make_unique<Looks>());
      },
      {});
}

}  // namespace
}  // namespace zero::testing

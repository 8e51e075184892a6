// Hooks that a program sets on parameters, where it is about more than their bits: those are a
// matter of the programs of tests/fuzz. A second backward, which stage 3 refuses.

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>

namespace zero::testing {
namespace {

namespace autograd = torch::autograd;
using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(GradientHooks, 1, 2, 3);

struct AfterAccumulation : autograd::PostAccumulateGradHook {
  explicit AfterAccumulation(std::function<void(const at::Tensor&)> f) : function(std::move(f)) {}
  void operator()(const at::Tensor& parameter) override { function(parameter); }
  std::function<void(const at::Tensor&)> function;
};
void set_post_hook(const at::Tensor& parameter, std::function<void(const at::Tensor&)> function) {
  autograd::impl::set_post_acc_grad_hooks(parameter,
                                          std::make_unique<AfterAccumulation>(std::move(function)));
}

// When no forward() of the engine has been since.
TEST_P(GradientHooks, SetLaterKeepGradientsOfOtherPassesOut) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.stage = stage}), undisturbed(communicator, {.stage = stage});
    for (const at::Tensor& p : run.toy.model->parameters()) set_post_hook(p, [](auto&) {});
    data::loss_of(*run.toy.model, run.toy.batch(run.rank, 9)).backward();
    run.steps(0, 4);
    undisturbed.steps(0, 4);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

// As for a log. The engine goes on to write averages, and to give memory back.
TEST_P(GradientHooks, MayKeepTheGradient) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto gradients = [](tools::Mlp& model, const std::function<void()>& step) {
      std::map<const void*, at::Tensor> kept;
      const auto parameters = model.parameters();
      for (const at::Tensor& p : parameters) {
        set_post_hook(p, [&kept](const at::Tensor& parameter) {
          kept[parameter.unsafeGetTensorImpl()] = parameter.grad();
        });
      }
      step();
      std::vector<at::Tensor> in_order;
      for (const at::Tensor& p : parameters) in_order.push_back(kept[p.unsafeGetTensorImpl()]);
      return in_order;
    };
    EngineRun run(communicator, {.stage = stage});
    const auto seen = gradients(*run.toy.model, [&] { run.step(0); });
    const Toy alone = Toy::alone();
    EXPECT_TRUE(same_bits(seen, gradients(*alone.model, [&] {
                            data::loss_of(*alone.model, alone.batch(run.rank, 0)).backward();
                          })));
  });
}

struct AfterAccumulator : autograd::FunctionPostHook {
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    return outputs;
  }
};

TEST_P(GradientHooks, AfterAnAccumulatorAreRefusedByName) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.stage = stage});
    run.step(0);
    const auto accumulator = autograd::impl::grad_accumulator(run.toy.model->parameters()[1]);
    accumulator->add_post_hook(std::make_unique<AfterAccumulator>());
    expect_error([&] { run.step(1); }, {"'layers.0.linear.bias'", "set_post_acc_grad_hooks()"});
  });
}

TEST(GradientHooksOfOneRank, ThatThrowAreHeardOfByAll) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto exits = ranks_ended({.world_size = 3}, [&](dist::Communicator& communicator) {
      EngineRun run(communicator, {.stage = stage});
      run.toy.model->parameters()[1].register_hook([&](const at::Tensor&) {
        if (run.rank == 1 && run.engine.steps() == 1) throw Error("the hook of rank 1");
      });
      run.steps(0, 4);
    });
    for (const dist::RankExit& exit : exits) {
      EXPECT_EQ(exit.exit_code, 1) << exit.rank;
      EXPECT_FALSE(exit.killed) << exit.rank;
      EXPECT_THAT(exit.output, HasSubstr(exit.rank == 1 ? "the hook of rank 1" : "is gone"));
    }
  }
}

}  // namespace
}  // namespace zero::testing

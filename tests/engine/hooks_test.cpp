// Hooks that a program sets on parameters, where it is about more than their bits: those are a
// matter of the programs of tests/fuzz. A second backward, which stage 3 refuses.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
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

struct PlainPair : torch::nn::Module {
  PlainPair() {
    for (const char* name : {"first", "second"}) {
      layers.push_back(register_module(name, torch::nn::Linear(13, 13)));
    }
  }
  at::Tensor predict(const at::Tensor& x) { return layers[1](layers[0](x).tanh()).tanh(); }
  std::vector<torch::nn::Linear> layers;
};

// The weights after three steps. Before each of them one with a penalty on the gradient of the
// inputs is tried if `tries`: an error on all ranks before anything is reduced, and given up.
std::vector<at::Tensor> weights_with_penalties(
    dist::Communicator& communicator, Engine& engine, bool tries,
    const std::function<at::Tensor(const at::Tensor&)>& predict) {
  const auto backward = [&](int number, bool penalised) {
    const auto seed = static_cast<std::uint64_t>(100 * communicator.rank() + number);
    const at::Tensor x = random({4, 13}, seed, /*gradient=*/penalised, at::kFloat);
    engine.backward(engine.forward([&] {
      const at::Tensor y = predict(x);
      if (!penalised) return y.square().mean();
      return autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0].square().mean();
    }));
  };
  for (const int number : {0, 1, 2}) {
    if (tries) {
      const dist::Traffic before = communicator.traffic();
      expect_error([&] { backward(number, /*penalised=*/true); },
                   {"create_graph runs through ", "needs stages 0 to 2"});
      EXPECT_EQ(communicator.traffic().since(before).bytes(dist::Purpose::kGradient), 0);
      engine.give_up_step();
    }
    backward(number, /*penalised=*/false);
    EXPECT_TRUE(engine.step());
  }
  return whole_weights(engine.strategy());
}

TEST_P(GradientHooks, ASecondBackwardIsRefusedAtStage3) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const EngineConfig& config :
         std::vector<EngineConfig>{{}, {.lookahead = 0}, {.shard_size = 1}}) {
      SCOPED_TRACE(base::text_of(config));
      std::vector<std::vector<at::Tensor>> of_units, of_plain;
      for (const bool tries : {false, true}) {
        EngineRun run(communicator, config);
        of_units.push_back(
            weights_with_penalties(communicator, run.engine, tries,
                                   [&](const at::Tensor& x) { return run.toy.model->predict(x); }));
        at::manual_seed(3);
        PlainPair pair;
        Engine engine(pair, communicator, optim::adamw(), config, nn::default_units(1));
        of_plain.push_back(weights_with_penalties(
            communicator, engine, tries, [&](const at::Tensor& x) { return pair.predict(x); }));
      }
      EXPECT_TRUE(same_bits(of_units[0], of_units[1]));
      EXPECT_TRUE(same_bits(of_plain[0], of_plain[1]));
    }
  });
}

}  // namespace
}  // namespace zero::testing

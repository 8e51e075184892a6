// What a program may get wrong in a call is an error that names it, on all ranks, and neither a
// crash nor a wrong result.

#include <ATen/ops/complex.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

#include <limits>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(WrongArguments, OfAnOptimizerAreErrorsOnAllRanks) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto refused = [&](const optim::OptimizerFactory& optimizer, const std::string& why) {
      expect_error([&] { EngineRun(communicator, {}, optimizer); }, {why});
    };
    const auto from_zero = [](const std::string& what) {
      return "the optimizer's " + what + "; it must be a number from 0";
    };
    refused(optim::adamw({.learning_rate = -1}), from_zero("learning_rate is -1"));
    refused(optim::adamw({.learning_rate = kNan}), from_zero("learning_rate is nan"));
    refused(optim::adamw({.learning_rate = 1 / 0.0}), from_zero("learning_rate is inf"));
    refused(optim::adamw({.beta1 = 1}), from_zero("beta1 is 1") + " to below 1");
    refused(optim::adamw({.beta2 = -0.5}), from_zero("beta2 is -0.5") + " to below 1");
    refused(optim::adamw({.epsilon = -1}), from_zero("epsilon is -1"));
    refused(optim::adamw({.weight_decay = kNan}), from_zero("weight_decay is nan"));
    refused(optim::sgd({.momentum = -1}), from_zero("momentum is -1"));
    const std::string none = "there is no optimizer: the function that makes it returned none";
    refused({}, none);
    refused([](const auto&) { return std::unique_ptr<optim::Optimizer>(); }, none);
    refused([](const auto&) { return optim::wrap(nullptr); }, "the pointer is null");

    EngineRun run(communicator, {}), undisturbed(communicator, {});
    optim::Optimizer& optimizer = run.engine.strategy().optimizer();
    expect_error([&] { optimizer.set_learning_rate(kNan); }, {from_zero("learning_rate is nan")});
    expect_error([&] { optimizer.set_learning_rates({-1}); }, {from_zero("learning_rate is -1")});
    run.step(0);
    undisturbed.step(0);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST(WrongArguments, OfAnEngineAndItsBatchesAreErrors) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const double norm : {-1.0, kNan, 1 / 0.0}) {
      expect_error([&] { EngineRun(communicator, {.clip_norm = norm}); },
                   {"it must be a norm, or 0 for no clipping"});
    }
    EngineRun run(communicator, {}), undisturbed(communicator, {});
    data::Batch batch = run.toy.batch(run.rank, 0);
    batch.loss_terms = -1;
    expect_error([&] { run.engine.forward(batch); }, {"a batch with -1 loss terms"});
    const at::Tensor loss = run.forward(0);
    const at::Tensor complex = at::complex(loss, at::zeros({}));
    expect_error([&] { run.engine.backward(run.rank == 1 ? complex : loss); },
                 {"a loss that is not one real number with a gradient on rank 1"});
    expect_error([&] { train::UnshardedParameters(run.engine.strategy(), 99); },
                 {"there is no unit 99: the model has "});
    run.step(0);
    undisturbed.step(0);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST(WrongOrder, InsideOfAForwardIsAnError) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const TestFolder folder;
    for (const int stage : {0, 3}) {
      torch::nn::Linear net(3, 3);
      Engine engine(*net, communicator, optim::adamw(), {.overlap = {.stage = stage}});
      const auto loss = [&] { return net->forward(at::ones({2, 3})).sum(); };
      const auto inside = [&](const char* call, const std::function<void()>& function) {
        expect_error(
            [&] {
              engine.forward([&] {
                function();
                return loss();
              });
            },
            {std::string(call) + "() in the function that forward() runs"});
      };
      const at::Tensor earlier = engine.forward(loss);
      inside("forward", [&] { engine.forward(loss); });
      inside("evaluate", [&] { engine.evaluate(loss); });
      inside("backward", [&] { engine.backward(earlier); });
      inside("save", [&] { engine.save(folder.path()); });
      inside("load", [&] { engine.load(folder.path()); });
      inside("release", [&] { engine.release(); });
      engine.backward(engine.forward(loss));
      inside("step", [&] { engine.step(); });
      EXPECT_TRUE(engine.step());
    }
  });
}

// It would call itself until the stack is full.
TEST(WrongOrder, AStepInTheCallbackOfAStepIsAnError) {
  on_ranks(2, [](dist::Communicator& communicator) {
    EngineRun run(communicator, {});
    run.engine.on_step([&](const StepMetrics&) { run.step(1); });
    expect_error([&] { run.step(0); },
                 {"the callback of a step: rank 0: backward() in the callback"});
    run.engine.on_step({});
    EXPECT_TRUE(run.step(1));
  });
}

TEST(WrongOrder, AnEngineThatHasReleasedItsModelNeitherSavesNorLoads) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const TestFolder folder;
    EngineRun run(communicator, {});
    run.step(0);
    run.engine.release();
    expect_error([&] { run.engine.save(folder.path()); }, {"save() after release()"});
    expect_error([&] { run.engine.load(folder.path()); }, {"load() after release()"});
    expect_error([&] { run.engine.load_weights(safetensors::NamedTensors()); },
                 {"load_weights() after release()"});
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  });
}

TEST(Engine, KeepsAModuleThatAPointerOwns) {
  on_ranks(2, [](dist::Communicator& communicator) {
    auto net = std::make_shared<torch::nn::LinearImpl>(3, 3);
    const std::weak_ptr<torch::nn::LinearImpl> seen = net;
    {
      Engine engine(*net, communicator, optim::adamw());
      net.reset();
      EXPECT_FALSE(seen.expired());
    }
    EXPECT_TRUE(seen.expired());
  });
}

}  // namespace
}  // namespace zero::testing

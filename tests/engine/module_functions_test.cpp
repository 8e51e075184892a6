// LibTorch's own functions of a module while an engine has it: save, load, clone, to.

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/nn/cloneable.h>
#include <torch/serialize.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/thrown_by.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A module that is none of this project's.
struct Scale : torch::nn::Cloneable<Scale> {
  Scale() { Scale::reset(); }
  void reset() override { weight = register_parameter("weight", at::full({3}, 0.5)); }
  at::Tensor weight;
};

// The toy with such a module behind it, and a parameter that two places have.
struct Net : BatchModel {
  Net() {
    mlp = register_module("mlp", std::make_shared<tools::Mlp>());
    scale = register_module("scale", std::make_shared<Scale>());
    twice = add_parameter("twice", {3}, nn::Initializer::normal(0.5));
    mlp->register_parameter("twice_too", twice);
    register_buffer("buffer", at::full({2}, 7.0));
  }
  at::Tensor predict(const data::Batch& batch) {
    return run([&] { return mlp->predict(batch.inputs) * scale->weight + twice; });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }
  std::shared_ptr<tools::Mlp> mlp;
  std::shared_ptr<Scale> scale;
  at::Tensor twice;
};

struct NetRun {
  NetRun(dist::Communicator& communicator, const EngineConfig& config)
      : net(std::make_shared<Net>()), rank(communicator.rank()) {
    nn::SeededValues values(3);
    nn::initialize_parameters(*net, values);
    engine =
        std::make_unique<Engine>(*net, communicator, optim::adamw({.learning_rate = 0.01}), config);
  }
  void steps(int first, int last) {
    for (int s = first; s < last; ++s) {
      engine->backward(forward_batch(*engine, Toy().batch(rank, s)));
      engine->step();
    }
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine->strategy()); }
  /// Holds every unit, and calls `action`.
  void with_whole_units(const std::function<void()>& action) {
    std::vector<std::unique_ptr<train::UnshardedParameters>> held;
    for (std::size_t u = 0; u < engine->strategy().list().units.size(); ++u) {
      held.push_back(std::make_unique<train::UnshardedParameters>(engine->strategy(), u));
    }
    action();
  }
  std::shared_ptr<Net> net;
  int rank;
  std::unique_ptr<Engine> engine;
  TestFolder folder;
  const std::string path = (folder / "net.pt").string();
};

// What a program of LibTorch reads of the file.
std::shared_ptr<Net> loaded(const std::string& path) {
  auto net = std::make_shared<Net>();
  torch::load(net, path);
  return net;
}

// What was saved while an engine had it may share memory, which list_parameters() refuses.
void expect_values(Net& net, const std::vector<at::Tensor>& expected) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& p : net.parameters()) {
    const auto is_it = [&p](const at::Tensor& other) { return other.is_same(p); };
    if (std::ranges::none_of(parameters, is_it)) parameters.push_back(p);
  }
  ASSERT_EQ(parameters.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i], expected[i])) << i;
    EXPECT_TRUE(parameters[i].requires_grad());
  }
  EXPECT_EQ(net.buffers().front()[1].item<float>(), 7.0F);
}

ZERO_TESTS_ON_RANKS(ModuleFunctions, 2, 3);

// Of the library's layers as of a module that is none: what is whole is right in the file, what is
// not is an error.
TEST_P(ModuleFunctions, SaveIsRightWhereParametersAreWholeAndElseAnError) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    NetRun run(communicator, {.stage = stage});
    run.steps(0, 2);
    const std::vector<at::Tensor> expected = run.weights();
    if (stage == 3) {
      const std::vector<std::shared_ptr<torch::nn::Module>> parts = {run.net, run.net->scale};
      for (const auto& part : parts) {
        EXPECT_THAT(
            thrown_by([&] { torch::save(part, run.path); }),
            AllOf(HasSubstr("of the root, which is not whole"), HasSubstr("UnshardedParameters")));
      }
      run.with_whole_units([&] { torch::save(run.net, run.path); });
    } else {
      torch::save(run.net, run.path);
    }
    expect_values(*loaded(run.path), expected);
    run.steps(2, 3);
    const std::vector<at::Tensor> last = run.weights();
    run.engine->release();
    torch::save(run.net, run.path);
    const auto next = loaded(run.path);
    expect_values(*next, last);
    Engine(*next, communicator, optim::adamw(), {.stage = 3});
  });
}

// A value that the strategy does not know of: neither a step nor a checkpoint takes it for its own.
TEST_P(ModuleFunctions, LoadAndToAreNoticedUntilTheModelIsReleased) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const bool loads : {false, true}) {
      SCOPED_TRACE(loads);
      NetRun run(communicator, {.stage = stage});
      torch::save(std::make_shared<Scale>(), run.path);
      if (!loads) run.steps(0, 1);
      run.with_whole_units(
          [&] { loads ? torch::load(run.net->scale, run.path) : run.net->scale->to(at::kDouble); });
      const std::vector<std::string> noticed = {"parameter 'scale.weight' has other memory",
                                                "before the strategy is made"};
      expect_error([&] { run.engine->save(run.folder / "checkpoint"); }, noticed);
      expect_error([&] { run.steps(1, 2); }, noticed);
    }
    NetRun run(communicator, {.stage = stage});
    run.steps(0, 1);
    run.engine->release();
    torch::save(std::make_shared<Net>(), run.path);
    torch::load(run.net, run.path);
    run.net->to(at::kDouble);
    EXPECT_EQ(run.net->twice.scalar_type(), at::kDouble);
  });
}

TEST_P(ModuleFunctions, APlainPartIsClonedWhereItIsWhole) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    NetRun run(communicator, {.stage = stage});
    run.steps(0, 1);
    const std::vector<at::Tensor> weights = run.weights();
    const auto clone = [&] { return std::dynamic_pointer_cast<Scale>(run.net->scale->clone()); };
    if (stage == 3) {
      EXPECT_THROW(clone(), c10::Error);
      return;
    }
    EXPECT_TRUE(at::equal(clone()->weight, run.net->scale->weight));
  });
}

}  // namespace
}  // namespace zero::testing

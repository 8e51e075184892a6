// LibTorch's own functions of a module while an engine has it: save, load, clone, to.

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/nn/cloneable.h>
#include <torch/serialize.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/base/sha256.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine.hpp>
#include <zero/memory/storage.hpp>
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
    mlp = register_module("mlp", std::make_shared<nn::Mlp>());
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
  std::shared_ptr<nn::Mlp> mlp;
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

void expect_values(Net& net, const std::vector<at::Tensor>& expected) {
  const std::vector<nn::Parameter> parameters = nn::list_parameters(net).parameters;
  ASSERT_EQ(parameters.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i].tensor, expected[i])) << parameters[i].name;
    // Not a part of a buffer, which the next strategy would not take.
    EXPECT_EQ(parameters[i].tensor.storage().nbytes(), parameters[i].tensor.nbytes());
    EXPECT_TRUE(parameters[i].tensor.requires_grad());
  }
  EXPECT_EQ(net.buffers().front()[1].item<float>(), 7.0F);
}

std::string digest(const std::string& path) { return base::Sha256().add(read_bytes(path)).hex(); }

ZERO_TESTS_ON_RANKS(ModuleFunctions, 2, 3);

TEST_P(ModuleFunctions, SaveWritesTheSameOnEveryRankWhereParametersAreWhole) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      for (const bool defer : {false, true}) {
        SCOPED_TRACE(fmt::format("stage {}, {}", stage, defer));
        NetRun run(communicator, {.stage = stage, .defer_parameter_gather = defer});
        NetRun undisturbed(communicator, {.stage = stage});
        run.steps(0, 2);
        torch::save(run.net, run.path);  // at once: gathers may be on their way
        undisturbed.steps(0, 2);
        expect_values(*loaded(run.path), undisturbed.weights());
        dist::verify_same(communicator, "the file", digest(run.path));
        run.steps(2, 4);
        undisturbed.steps(2, 4);
        EXPECT_TRUE(at::equal(run.weights().front(), undisturbed.weights().front()));
        // What was saved is a model like any other.
        const auto next = loaded(run.path);
        Engine engine(*next, communicator, optim::adamw(), {.stage = 3});
      }
    }
  });
}

// An archive that a program writes later.
TEST_P(ModuleFunctions, AnArchiveKeepsTheValuesThatItWasGiven) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    NetRun run(communicator, {.stage = stage});
    run.steps(0, 1);
    const std::vector<at::Tensor> expected = run.weights();
    torch::serialize::OutputArchive archive;
    run.with_whole_units([&] { run.net->save(archive); });
    run.steps(1, 3);
    archive.save_to(run.path);
    expect_values(*loaded(run.path), expected);
    EXPECT_FALSE(at::equal(run.weights().front(), expected.front()));
  });
}

TEST_P(ModuleFunctions, SaveOfAShardedModelIsRefusedByTheNameOfAParameter) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    NetRun run(communicator, {.stage = 3});
    NetRun undisturbed(communicator, {.stage = 3});
    run.steps(0, 2);
    undisturbed.steps(0, 2);
    const auto refused = AllOf(HasSubstr("save() on"), HasSubstr("while engine3 has it"),
                               HasSubstr("is not whole on this rank"), HasSubstr("call release()"),
                               HasSubstr("hold train::UnshardedParameters"));
    EXPECT_THAT(error_of([&] { torch::save(run.net, run.path); }),
                AllOf(refused, HasSubstr("'twice'")));
    EXPECT_THAT(error_of([&] { torch::save(run.net->mlp, run.path); }),
                AllOf(refused, HasSubstr("'twice_too'")));
    EXPECT_FALSE(std::filesystem::exists(run.path));
    run.with_whole_units([&] { torch::save(run.net, run.path); });
    expect_values(*loaded(run.path), undisturbed.weights());
    dist::verify_same(communicator, "the file", digest(run.path));
    run.steps(2, 3);  // the module has its own parameters again
    undisturbed.steps(2, 3);
    run.engine->release();
    torch::save(run.net, run.path);
    expect_values(*loaded(run.path), undisturbed.weights());
  });
}

TEST_P(ModuleFunctions, LoadCloneAndToAreRefusedUntilTheModelIsReleased) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    NetRun run(communicator, {.stage = stage});
    NetRun other(communicator, {.stage = 0});
    other.steps(0, 1);
    torch::save(other.net, run.path);
    const std::vector<at::Tensor> saved = other.weights();
    const std::string held = fmt::format("while engine{} has it", stage);
    const auto refused = AllOf(HasSubstr(held), HasSubstr("after its release()"));
    EXPECT_THAT(error_of([&] { torch::load(run.net, run.path); }), refused);
    EXPECT_THAT(error_of([&] { run.net->to(at::kDouble); }), refused);
    expect_error([&] { run.net->clone(); }, {"clone()", "Net"});
    run.steps(0, 2);
    other.steps(1, 2);
    EXPECT_TRUE(at::equal(run.weights().front(), other.weights().front()));
    run.engine->release();
    torch::load(run.net, run.path);
    expect_values(*run.net, saved);
  });
}

// A plain module inside asks nobody.
TEST_P(ModuleFunctions, APartThatIsLoadedOrCastByItselfIsNoticed) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const bool loads : {false, true}) {
      SCOPED_TRACE(loads);
      NetRun run(communicator, {.stage = stage});
      torch::save(std::make_shared<Scale>(), run.path);
      if (!loads) run.steps(0, 1);
      run.with_whole_units(
          [&] { loads ? torch::load(run.net->scale, run.path) : run.net->scale->to(at::kDouble); });
      expect_error([&] { run.steps(1, 2); },
                   {"parameter 'scale.weight' has other memory", "before the strategy is made"});
    }
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

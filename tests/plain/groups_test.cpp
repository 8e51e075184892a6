// What a program reads of an engine whose ranks are in groups, or whose model is split: the state
// dict, and the average of the weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tests/support/modes.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/optim/weight_average.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using safetensors::NamedTensors;

constexpr double kDecay = 0.9;

std::vector<at::Tensor> tensors_of(const NamedTensors& dict) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : dict) tensors.push_back(tensor);
  return tensors;
}

NamedTensors dict_of(Engine& engine) {
  return io::state_dict(engine.strategy(), io::WholeOn::kAllRanks);
}

NamedTensors averaged_dict_of(Engine& engine) {
  NamedTensors dict;
  engine.with_averaged_weights([&] { dict = dict_of(engine); });
  return dict;
}

// A loop without this library, over whole weights.
void average(std::vector<at::Tensor>& average, const std::vector<at::Tensor>& weights) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    average[i].add_(weights[i].sub(average[i]).mul_(1 - kDecay));
  }
}

struct Groups {
  std::string name;
  std::string options;
  int first_stage;
};

class InGroups : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(
    Options, InGroups,
    ::testing::Values(Groups{"Hsdp", R"({"shard_size": 2})", 1},
                      Groups{"Hpz", R"({"secondary_shards": true, "group_size": 2})", 3},
                      Groups{"Qwz", R"({"quantize_parameters": true, "group_size": 2})", 3},
                      Groups{"Qgz", R"({"quantize_gradients": true, "group_size": 2})", 3},
                      Groups{"Zeropp",
                             R"({"secondary_shards": true, "quantize_parameters": true,
                                 "quantize_gradients": true, "group_size": 2})",
                             3}),
    [](const auto& info) { return info.param.name; });

// Calls `body` with a run of each stage that has the options.
void on_groups(const Groups& groups,
               const std::function<void(PlainRun&, const TestFolder&)>& body) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& communicator) {
    for (int stage = groups.first_stage; stage <= 3; ++stage) {
      SCOPED_TRACE(stage);
      PlainRun run(communicator, "gpt2", {.overlap = {.stage = stage}, .more = groups.options},
                   optim::with_weight_average(wrapped_adamw, kDecay));
      body(run, folder);
    }
  });
}

TEST_P(InGroups, TheStateDictIsWhatTheModuleHasWhenItIsGivenBack) {
  on_groups(GetParam(), [](PlainRun& run, const TestFolder&) {
    run.step(0);
    run.step(1);
    const NamedTensors dict = dict_of(run.engine);
    run.engine.release();
    EXPECT_TRUE(same_bits(tensors_of(dict), run.made.module->parameters()));
  });
}

TEST_P(InGroups, TheAverageIsThatOfTheWholeWeights) {
  on_groups(GetParam(), [](PlainRun& run, const TestFolder& folder) {
    std::vector<at::Tensor> expected = tensors_of(dict_of(run.engine));
    for (int number = 0; number < 3; ++number) {
      run.step(number);
      const std::vector<at::Tensor> weights = tensors_of(dict_of(run.engine));
      average(expected, weights);
      EXPECT_TRUE(same_bits(tensors_of(averaged_dict_of(run.engine)), expected));
      EXPECT_TRUE(same_bits(tensors_of(dict_of(run.engine)), weights));
      EXPECT_FALSE(same_bits(weights, expected));
    }
    run.engine.save(folder.path());
    run.step(3);
    run.engine.load(folder.path());
    EXPECT_TRUE(same_bits(tensors_of(averaged_dict_of(run.engine)), expected));
  });
}

// What an evaluation under the average reads is the average, not the weights before it.
TEST_P(InGroups, AnEvaluationSeesTheAverage) {
  on_groups(GetParam(), [](PlainRun& run, const TestFolder&) {
    for (int number = 0; number < 3; ++number) run.step(number);
    const auto loss = [&] {
      at::manual_seed(8);
      return run.engine.evaluate(run.made.loss);
    };
    const at::Tensor before = loss();
    const NamedTensors weights = dict_of(run.engine), averages = averaged_dict_of(run.engine);
    at::Tensor shown;
    run.engine.with_averaged_weights([&] { shown = loss(); });
    EXPECT_TRUE(at::equal(loss(), before));
    run.engine.load_weights(averages);
    EXPECT_TRUE(at::equal(loss(), shown));
    EXPECT_FALSE(at::equal(shown, before));
    run.engine.load_weights(weights);
    EXPECT_TRUE(at::equal(loss(), before));
  });
}

// Against a model that is not split, as far as rounding allows; and against itself exactly.
TEST(OnATensorAxis, TheAverageAndTheStateDictAreThoseOfTheWholeModel) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      nn::SeededValues values(3);
      const auto model = make_deferred<nn::Llama>(
          llama_to_split(), nn::TensorParallel(axes.mesh.tensor(), /*sequence=*/true));
      Engine engine(*model, axes.mesh, optim::with_weight_average(optim::adamw(), kDecay),
                    at_stage(stage), &values);
      const auto whole = make_deferred<nn::Llama>(llama_to_split());
      nn::initialize_parameters(*whole, values);
      EXPECT_TRUE(same_bits(tensors_of(dict_of(engine)), whole->parameters()));
      std::vector<at::Tensor> expected = tensors_of(dict_of(engine));
      for (int number = 0; number < 3; ++number) {
        engine.backward(engine.forward(split_batch(axes.data->rank(), number)));
        engine.step();
        average(expected, tensors_of(dict_of(engine)));
        EXPECT_TRUE(same_bits(tensors_of(averaged_dict_of(engine)), expected));
      }
      const NamedTensors averages = averaged_dict_of(engine);
      engine.load_weights(averages);
      EXPECT_TRUE(same_bits(tensors_of(dict_of(engine)), expected));
    }
  });
}

}  // namespace
}  // namespace zero::testing

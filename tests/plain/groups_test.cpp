// What a program reads of an engine whose ranks are in groups, or whose model is split: the state
// dict.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tests/support/modes.hpp>
#include <tests/support/split_run.hpp>
#include <zero/io/state_dict.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using safetensors::NamedTensors;

std::vector<at::Tensor> tensors_of(const NamedTensors& dict) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : dict) tensors.push_back(tensor);
  return tensors;
}

NamedTensors dict_of(Engine& engine) {
  return io::state_dict(engine.strategy(), io::WholeOn::kAllRanks);
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

TEST_P(InGroups, TheStateDictIsWhatTheModuleHasWhenItIsGivenBack) {
  on_ranks(4, [](dist::Communicator& communicator) {
    for (int stage = GetParam().first_stage; stage <= 3; ++stage) {
      SCOPED_TRACE(stage);
      EngineConfig config = engine_config(GetParam().options);
      config.stage = stage;
      PlainRun run(communicator, "gpt2", config);
      run.step(0);
      run.step(1);
      const NamedTensors dict = dict_of(run.engine);
      run.engine.release();
      EXPECT_TRUE(same_bits(tensors_of(dict), run.made.module->parameters()));
    }
  });
}

TEST(OnATensorAxis, TheStateDictIsThatOfTheWholeModel) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      nn::SeededValues values(3);
      const auto model = make_deferred<nn::Llama>(
          llama_to_split(), nn::TensorParallel(axes.mesh.tensor(), /*sequence=*/true));
      Engine engine(*model, axes.mesh, optim::adamw(), at_stage(stage), nn::default_units(),
                    &values);
      const auto whole = make_deferred<nn::Llama>(llama_to_split());
      nn::initialize_parameters(*whole, values);
      EXPECT_TRUE(same_bits(tensors_of(dict_of(engine)), whole->parameters()));
      engine.backward(forward_batch(engine, split_batch(axes.data->rank(), 0)));
      engine.step();
      const NamedTensors trained = dict_of(engine);
      engine.backward(forward_batch(engine, split_batch(axes.data->rank(), 1)));
      engine.step();
      engine.load_weights(trained);
      EXPECT_TRUE(same_bits(tensors_of(dict_of(engine)), tensors_of(trained)));
    }
  });
}

}  // namespace
}  // namespace zero::testing

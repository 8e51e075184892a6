// What a program reads of an engine whose ranks are in groups, or whose model is split: the state
// dict.

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

TEST(InGroups, TheStateDictIsWhatTheModuleHasWhenItIsGivenBack) {
  on_ranks(4, [](dist::Communicator& communicator) {
    for (const char* options :
         {R"({"shard_size": 2, "stage": 1})", R"({"shard_size": 2})",
          R"({"secondary_shards": true, "group_size": 2})",
          R"({"quantize_parameters": true, "group_size": 2})",
          R"({"quantize_gradients": true, "group_size": 2})",
          R"({"secondary_shards": true, "quantize_parameters": true, "quantize_gradients": true,
              "group_size": 2})"}) {
      SCOPED_TRACE(options);
      PlainRun run(communicator, "gpt2", engine_config(options));
      for (const int number : {0, 1}) run.step(number);
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

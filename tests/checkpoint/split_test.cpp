// Checkpoints and saved models of a model that is split over a tensor axis; pipeline_test.cpp loads
// those of any mesh on any other.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>

namespace zero::testing {
namespace {

SplitOptions options_of(const std::string& mode) { return {.mode = mode, .sequence = true}; }

TEST(SplitCheckpoint, ResumesToTheBitOnTheGridThatSaved) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    TwoAxes axes(world, 2);
    SplitRun run(axes.mesh, options_of("engine3"));
    for (int s = 0; s < 2; ++s) run.step(s);
    io::CheckpointInfo info;
    info.step = 2;
    io::save_checkpoint(*run.strategy, folder.path() / "run", info);
    SplitRun resumed(axes.mesh, options_of("engine3"));
    io::load_checkpoint(*resumed.strategy, folder.path() / "run");
    for (int s = 2; s < 4; ++s) {
      run.step(s);
      resumed.step(s);
    }
    EXPECT_TRUE(same_bits(resumed.weights(), run.weights()));
    world.barrier();
  });
}

TEST(SplitModel, IsSavedAsOneFileThatTheWholeModelAndAnySplitRead) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    TwoAxes axes(world, 2);
    SplitRun run(axes.mesh, options_of("engine3"));
    run.step(0);
    io::save_model(*run.strategy, nn::to_hugging_face_json(llama_to_split()), folder / "model");
    const std::vector<at::Tensor> expected = run.model_weights();
    world.barrier();
    for (const nn::TensorParallel& tensor : {nn::TensorParallel(*axes.tensor), {}}) {
      nn::Llama model(llama_to_split(), tensor);
      io::StoredValues values(folder / "model", nn::list_parameters(model));
      nn::initialize_parameters(model, values);
      const nn::ParameterList list = nn::list_parameters(model);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const nn::Parameter& p = list.parameters[i];
        EXPECT_TRUE(at::equal(p.placement.part_of(expected[i]), p.tensor)) << p.name;
      }
    }
    world.barrier();
  });
}

}  // namespace
}  // namespace zero::testing

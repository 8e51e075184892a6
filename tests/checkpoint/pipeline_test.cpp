// Checkpoints and saved models of a pipeline whose layers may be split over a tensor axis: those of
// the whole model, at any numbers of ranks of the three axes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include <tests/support/error_of.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>

namespace zero::testing {
namespace {

// Weights, moments and step counts of what a rank's model has of the whole one. All tensor ranks
// call.
WholeState state_of(train::Strategy& strategy) {
  WholeState state;
  WholeState parts = whole_state(strategy);
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    const bool is_copy = strategy.stage_of_model().is_copy(i);
    const train::ParameterShard piece = strategy.placement(i).updated;
    if (is_copy && piece.tensor.defined()) {
      EXPECT_TRUE(strategy.optimizer().state(piece.tensor).empty()) << "moments of a copy";
    }
    for (const auto& [key, tensor] : parts) {
      if (!key.ends_with("/" + p.name) || (is_copy && !key.starts_with("parameter/"))) continue;
      state[key] = p.placement.whole_of(tensor.view(p.tensor.sizes())).clone();
    }
  }
  return state;
}

// `whole` may have more.
void expect_in(const WholeState& stage, const WholeState& whole) {
  EXPECT_FALSE(stage.empty());
  for (const auto& [key, tensor] : stage) {
    EXPECT_TRUE(same_bits({tensor}, {whole.at(key)})) << key;
  }
}

io::CheckpointInfo info_of(const PipelineShape& shape) {
  io::CheckpointInfo info;
  info.step = 2;
  info.mode = shape.mode;
  return info;
}

PipelineShape saved_shape(const std::string& mode) {
  return {.mode = mode, .tied = !gathers_by_unit(mode), .width = 2, .sequence = true};
}

// Meshes of four ranks, and each rank by itself.
struct Meshes {
  explicit Meshes(dist::Communicator& world)
      : stages(world, 2),
        both(world, 2, 2),
        tensor(world, 1, 2),
        data(world, 1),
        wide(world, 1, 4),
        self(world.split({world.rank()}, "alone")),
        alone(*self, 1) {}
  std::vector<const ThreeAxes*> that_save() const { return {&stages, &both, &tensor}; }
  std::vector<const ThreeAxes*> that_load() const {
    return {&stages, &both, &tensor, &data, &wide, &alone};
  }

  ThreeAxes stages, both, tensor, data, wide;
  std::unique_ptr<dist::Communicator> self;
  ThreeAxes alone;
};

// Loads into a model on these axes, under another strategy, and expects the state.
std::unique_ptr<PipelineRank> expect_loads(const ThreeAxes& axes, PipelineShape shape,
                                           const std::string& mode,
                                           const std::filesystem::path& folder,
                                           const WholeState& expected) {
  SCOPED_TRACE(fmt::format("loaded by {} on {}", mode, axes.mesh.text()));
  shape.mode = mode;
  auto loaded = std::make_unique<PipelineRank>(axes, shape);
  EXPECT_EQ(io::load_checkpoint(*loaded->strategy, folder).step, 2);
  expect_in(state_of(*loaded->strategy), expected);
  return loaded;
}

// By the mesh that saves.
class PipelineCheckpointOf : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Mesh, PipelineCheckpointOf, ::testing::Values(0, 1, 2));

TEST_P(PipelineCheckpointOf, IsThatOfTheWholeModelOnAnyOther) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    const Meshes meshes(world);
    const ThreeAxes& axes = *meshes.that_save().at(GetParam());
    for (const std::string mode : {"ddp", "zero1", "tensor_zero2", "engine3"}) {
      SCOPED_TRACE(fmt::format("{} on {}", mode, axes.mesh.text()));
      PipelineShape shape = saved_shape(mode);
      shape.width = 4;
      // It has the bits of the stages, and all parameters.
      WholeRank whole(axes.of_stage, shape);
      PipelineRank saved(axes, shape);
      for (int s = 0; s < 2; ++s) {
        whole.step(s, 3);
        saved.step(s, 3);
      }
      const WholeState expected = state_of(*whole.strategy);
      expect_in(state_of(*saved.strategy), expected);
      io::save_checkpoint(*saved.strategy, folder / mode, info_of(shape));
      for (const ThreeAxes* others : meshes.that_load()) {
        const auto loaded = expect_loads(*others, shape, shape.tied ? "engine1" : "tensor_zero3",
                                         folder / mode, expected);
        if (others != &meshes.data && others != &meshes.wide) continue;
        const auto again = folder / fmt::format("{} by {}", mode, others->mesh.text());
        io::save_checkpoint(*loaded->strategy, again, info_of(shape));
        expect_loads(axes, shape, "engine1", again, expected);
      }
      // A model without a pipeline.
      WholeRank plain(world, shape, "zero3");
      io::load_checkpoint(*plain.strategy, folder / mode);
      EXPECT_TRUE(same_state(state_of(*plain.strategy), expected));
      world.barrier();
    }
  });
}

// A pipeline does not change a bit, so neither does a resume with another number of stages.
TEST(PipelineCheckpoint, ResumesToTheBitOnTheSameDataAndTensorAxes) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    const int half = world.rank() / 2;
    const auto pair = world.split({2 * half, 2 * half + 1}, "pair");
    for (const int tensor : {1, 2}) {
      for (const std::string mode : {"engine2", "engine3"}) {
        SCOPED_TRACE(fmt::format("{}, {} tensor ranks", mode, tensor));
        const PipelineShape shape = saved_shape(mode);
        const auto path = folder / fmt::format("{}-{}", mode, tensor);
        const ThreeAxes axes(world, 2, tensor);
        WholeRank whole(axes.of_stage, shape);
        PipelineRank run(axes, shape);
        for (int s = 0; s < 2; ++s) {
          whole.step(s, 3);
          run.step(s, 3);
        }
        io::save_checkpoint(*run.strategy, path, info_of(shape));
        // As many data ranks, two stages or one.
        const ThreeAxes of_pair(*pair, 1, tensor);
        PipelineRank again(axes, shape), shorter(of_pair, shape);
        io::load_checkpoint(*again.strategy, path);
        io::load_checkpoint(*shorter.strategy, path);
        for (int s = 2; s < 4; ++s) {
          const double loss = whole.step(s, 3).loss;
          EXPECT_EQ(run.step(s, 3).loss, loss);
          EXPECT_EQ(again.step(s, 3).loss, loss);
          EXPECT_EQ(shorter.step(s, 3).loss, loss);
        }
        const WholeState expected = state_of(*whole.strategy);
        for (train::Strategy* strategy :
             {run.strategy.get(), again.strategy.get(), shorter.strategy.get()}) {
          expect_in(state_of(*strategy), expected);
        }
        world.barrier();
      }
    }
  });
}

// The same files as those of the whole model, and every stage begins from them.
TEST(PipelineModel, IsSavedAsTheFilesOfTheWholeModel) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    const Meshes meshes(world);
    int saves = 0;
    for (const ThreeAxes* axes : meshes.that_save()) {
      for (const std::string mode : {"zero2", "engine3"}) {
        SCOPED_TRACE(fmt::format("{} on {}", mode, axes->mesh.text()));
        const PipelineShape shape = saved_shape(mode);
        const auto json = nn::to_hugging_face_json(pipeline_config(shape));
        WholeRank whole(axes->of_stage, shape);
        PipelineRank rank(*axes, shape);
        whole.step(0, 3);
        rank.step(0, 3);
        const std::string name = fmt::format("model-{}", saves++);
        const auto expected = folder / fmt::format("{}-{}", name, axes->pipeline->rank());
        io::save_model(*whole.strategy, json, expected);
        io::save_model(*rank.strategy, json, folder / name);
        for (const auto* file : {"config.json", "model.safetensors"}) {
          EXPECT_EQ(read_bytes(folder / name / file), read_bytes(expected / file)) << file;
        }
        LlamaStage stage(pipeline_config(shape), axes->pipeline->rank(), axes->pipeline->size(),
                         {*axes->tensor, shape.sequence});
        const nn::WholeModel* all = stage.whole_model();
        io::StoredValues values(folder / name,
                                all != nullptr ? all->list : nn::list_parameters(stage));
        const auto strategy = make_strategy("zero1", {stage, axes->mesh, shape.optimizer, &values});
        EXPECT_TRUE(same_bits(whole_weights(*strategy), whole_weights(*rank.strategy)));
      }
    }
    world.barrier();
  });
}

TEST(PipelineCheckpoint, OneStageThatCannotWriteIsAnErrorOnAllRanks) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    const ThreeAxes axes(world, 2, 2);
    PipelineRank rank(axes, saved_shape("engine2"));
    rank.step(0, 2);
    io::save_checkpoint(*rank.strategy, folder / "run", info_of(rank.shape));
    // Rank 3 of the checkpoint: the second tensor rank of the last stage.
    for (std::size_t i = 0; world.rank() == 3 && i < rank.strategy->list().size(); ++i) {
      const at::NoGradGuard no_grad;
      rank.strategy->placement(i).kept.tensor.fill_(std::numeric_limits<float>::infinity());
    }
    expect_error([&] { io::save_checkpoint(*rank.strategy, folder / "run", info_of(rank.shape)); },
                 {"cannot be saved: rank 3", "is infinite or NaN"});
    expect_error([&] { io::save_model(*rank.strategy, {}, folder / "model"); },
                 {"the model could not be saved: rank 3", "is infinite or NaN"});
    io::load_checkpoint(*rank.strategy, folder / "run");  // still whole
    EXPECT_GT(rank.step(1, 2).loss, 0);
  });
}

TEST(PipelineCheckpoint, AStageAloneAndAnotherModelAreRefused) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    const ThreeAxes axes(world, 2, 2);
    const PipelineShape shape = saved_shape("zero1");
    nn::SeededValues values(3);
    LlamaStage stage(pipeline_config(shape), axes.pipeline->rank(), 2, *axes.tensor);
    expect_error(
        [&] {
          make_strategy("zero1", {stage, axes.of_stage, shape.optimizer, &values});
        },
        {"a tensor axis that the mesh does not have"});
    LlamaStage uncut(pipeline_config(shape), axes.pipeline->rank(), 2, {});
    expect_error(
        [&] {
          make_strategy("zero1", {uncut, *axes.data, shape.optimizer, &values});
        },
        {"the model is a stage", "needs an axis \"pipeline\""});
    const auto strategy = make_strategy("zero1", {stage, axes.mesh, shape.optimizer, &values});
    io::save_checkpoint(*strategy, folder / "run", {});
    PipelineShape untied = shape;
    untied.tied = false;
    PipelineRank other(axes, untied);
    expect_error([&] { io::load_checkpoint(*other.strategy, folder / "run"); },
                 {"it is of another model", "\"lm_head.weight\""});
    world.barrier();
  });
}

}  // namespace
}  // namespace zero::testing

// Checkpoints and saved models of a model that is split over a tensor axis: those of the whole
// model, at any numbers of ranks of both axes.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>

namespace zero::testing {
namespace {

// Weights, moments and step counts of the whole model, on all ranks.
WholeState model_state(SplitRun& run) {
  WholeState state = whole_state(*run.strategy);
  for (const nn::Parameter& p : run.strategy->list().parameters) {
    for (auto& [key, tensor] : state) {
      if (!key.ends_with("/" + p.name)) continue;
      tensor = p.placement.whole_of(tensor.view(p.tensor.sizes())).clone();
    }
  }
  return state;
}

SplitOptions options_of(const std::string& mode) { return {.mode = mode, .sequence = true}; }

// Saved by 2 x 2 ranks, the whole model with its moments is what any other grid and any strategy
// load, and what they save is loaded again.
TEST(SplitCheckpoint, IsThatOfTheWholeModelOnAnyGrid) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    TwoAxes two(world, 2), four(world, 4), one(world, 1);
    for (const std::string mode : {"ddp", "zero1", "engine3"}) {
      SCOPED_TRACE(mode);
      SplitRun saved(two.mesh, options_of(mode));
      for (int s = 0; s < 2; ++s) saved.step(s);
      io::CheckpointInfo info;
      info.step = 2;
      info.mode = mode;
      io::save_checkpoint(*saved.strategy, folder / mode, info);
      const WholeState expected = model_state(saved);
      for (TwoAxes* axes : {&two, &four, &one}) {
        SCOPED_TRACE(fmt::format("{} tensor ranks", axes->tensor->size()));
        SplitRun loaded(axes->mesh, options_of("tensor_zero3"));
        EXPECT_FALSE(same_state(model_state(loaded), expected));
        EXPECT_EQ(io::load_checkpoint(*loaded.strategy, folder / mode).step, 2);
        EXPECT_TRUE(same_state(model_state(loaded), expected));
        const std::string again = fmt::format("{}-{}", mode, axes->tensor->size());
        io::save_checkpoint(*loaded.strategy, folder / again, info);
        SplitRun back(two.mesh, options_of("engine1"));
        io::load_checkpoint(*back.strategy, folder / again);
        EXPECT_TRUE(same_state(model_state(back), expected));
      }
      // An unsplit model without a tensor axis.
      SplitRun whole(world, {.mode = "zero3"});
      io::load_checkpoint(*whole.strategy, folder / mode);
      EXPECT_TRUE(same_bits(whole.weights(), saved.model_weights()));
      world.barrier();
    }
  });
}

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

TEST(SplitCheckpoint, OneRankThatCannotWriteIsAnErrorOnAllOfThem) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& world) {
    TwoAxes axes(world, 2);
    SplitRun run(axes.mesh, options_of("engine3"));
    run.step(0);
    for (std::size_t i = 0; world.rank() == 3 && i < run.strategy->list().size(); ++i) {
      const at::Tensor held = run.strategy->local_shard(i).tensor;
      if (held.defined()) held.fill_(INFINITY);
    }
    expect_error([&] { io::save_checkpoint(*run.strategy, folder / "bad", {}); },
                 {"cannot be saved: rank 3", "is infinite or NaN"});
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

// What parts of two cuts have in common, element by element.
TEST(SplitRanges, InCommonAreThoseOfTheSameElements) {
  using io::checkpoint::Cut;
  const std::vector<std::int64_t> shape = {4, 6, 2};
  const at::Tensor whole = at::arange(48).view(shape);
  const auto part = [&](const Cut& cut, int p) {
    return cut.dim < 0 ? whole.flatten() : whole.chunk(cut.parts, cut.dim)[p].flatten();
  };
  const std::vector<Cut> cuts = {{}, {0, 2}, {0, 4}, {1, 2}, {1, 3}, {2, 2}};
  for (const Cut& a : cuts) {
    for (const Cut& b : cuts) {
      std::int64_t common = 0;
      for (int pa = 0; pa < a.parts; ++pa) {
        const at::Tensor of_a = part(a, pa);
        const std::int64_t begin = 3, size = of_a.numel() - 5;  // a shard of it
        for (int pb = 0; pb < b.parts; ++pb) {
          const at::Tensor of_b = part(b, pb);
          io::checkpoint::for_each_common(
              shape, a, pa, {begin, size}, b, pb, {0, of_b.numel()},
              [&](std::int64_t in_a, std::int64_t in_b, std::int64_t n) {
                EXPECT_GE(in_a, begin);
                EXPECT_LE(in_a + n, begin + size);
                EXPECT_TRUE(at::equal(of_a.narrow(0, in_a, n), of_b.narrow(0, in_b, n)));
                common += n;
              });
        }
        common -= size;
      }
      EXPECT_EQ(common, 0) << a.dim << " " << b.dim;
    }
  }
}

}  // namespace
}  // namespace zero::testing

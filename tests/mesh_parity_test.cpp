// Data x pipeline x tensor: every strategy on the data axis of stages whose layers are split, and
// groups of ranks that hold copies of each other beside a tensor or a pipeline axis. The bits of
// chapter 00 on the same axes, the numbers of the whole model, and errors on all ranks.

#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <map>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/states.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;
using ::testing::Each;
using ::testing::Gt;

// Two stages of two tensor ranks each on `data_ranks`.
void on_mesh(int data_ranks, const std::function<void(const ThreeAxes&)>& body) {
  on_ranks(4 * data_ranks, [&](dist::Communicator& world) {
    const ThreeAxes axes(world, 2, 2);
    body(axes);
    world.barrier();
  });
}

// Stage 3 needs a model whose head is not the embedding.
PipelineShape shape_for(const std::string& mode, bool sequence = false) {
  return {.mode = mode, .tied = !gathers_by_unit(mode), .width = 2, .sequence = sequence};
}

class MeshParity : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataRanks, MeshParity, ::testing::Values(1, 2, 3), name_of_ranks);

TEST_P(MeshParity, EveryStrategyHasTheBitsOfChapter00OnTheSameTensorAxis) {
  for (const bool sequence : {false, true}) {
    if (sequence && GetParam() == 3) continue;  // 12 ranks take long
    on_mesh(GetParam(), [sequence](const ThreeAxes& axes) {
      std::map<bool, TrainedModel> expected;  // by whether the embedding is the head
      for (const bool tied : {false, true}) {
        WholeRank whole(axes.of_stage, shape_for(tied ? "ddp" : "zero3", sequence));
        const TrainedModel first = trained_model(whole, 0, 3);
        expected[tied] = trained_model(whole, 2, 3);
        EXPECT_THAT(expected[tied].norms, Each(Gt(0.05F))) << "nothing is clipped";
        for (const auto& [name, weight] : first.weights) {
          EXPECT_FALSE(at::equal(weight, expected[tied].weights.at(name))) << name;
        }
      }
      for (const std::string& mode : all_strategies()) {
        SCOPED_TRACE(fmt::format("{}, sequence {}", mode, sequence));
        const PipelineShape shape = shape_for(mode, sequence);
        PipelineRank rank(axes, shape);
        expect_part_of(trained_model(rank, 2, 3), expected[shape.tied]);
      }
    });
  }
}

// In double precision, where a pipeline, a tensor axis and one rank round almost alike. The norm is
// that of the whole model on each rank, a replicated parameter counted once.
TEST(MeshTraining, HasTheNumbersOfTheWholeModelOnOneRankOfBothAxes) {
  on_mesh(2, [](const ThreeAxes& axes) {
    for (const std::string mode : {"ddp", "zero2", "engine3"}) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, sequence {}", mode, sequence));
        PipelineShape shape = shape_for(mode, sequence);
        shape.dtype = at::kDouble;
        shape.optimizer = sgd(0.1);
        PipelineRank rank(axes, shape);
        WholeRank whole(*axes.data, shape);
        const TrainedModel found = trained_model(rank, 3, 3), expected = trained_model(whole, 3, 3);
        for (std::size_t s = 0; s < found.losses.size(); ++s) {
          EXPECT_NEAR(found.losses[s], expected.losses[s], 1e-12 * expected.losses[s]);
          EXPECT_FLOAT_EQ(found.norms[s], expected.norms[s]);
          EXPECT_GT(found.norms[s], 0.05F);
          dist::verify_same(rank.strategy->mesh().world(), "the norm",
                            fmt::format("{:a}", found.norms[s]));
        }
        for (const nn::Parameter& p : rank.strategy->list().parameters) {
          const auto whole_of = [&](const auto& parts) {
            return p.placement.whole_of(parts.at(p.name)).clone();
          };
          EXPECT_TRUE(close_to({whole_of(found.weights)}, {expected.weights.at(p.name)}, 1e-12))
              << p.name;
          if (!found.gradients.contains(p.name)) continue;  // a copy
          EXPECT_TRUE(close_to({whole_of(found.gradients)}, {expected.gradients.at(p.name)}, 1e-12))
              << "gradient of " << p.name;
        }
      }
    }
  });
}

TEST(MeshTraining, CheckpointsOfActivationsChangeNoBit) {
  on_mesh(1, [](const ThreeAxes& axes) {
    for (const bool tied : {false, true}) {
      for (const bool sequence : {false, true}) {
        PipelineShape shape{.tied = tied, .width = 2, .sequence = sequence};
        WholeRank whole(axes.of_stage, shape);
        const TrainedModel expected = trained_model(whole, 2, 5);
        shape.checkpoints = true;
        for (const auto schedule :
             {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward}) {
          for (const bool partitions : {false, true}) {
            if (partitions && sequence) continue;
            SCOPED_TRACE(fmt::format("{}, tied {}, sequence {}, partitions {}", name(schedule),
                                     tied, sequence, partitions));
            shape.schedule = schedule;
            shape.partitions = partitions;
            PipelineRank rank(axes, shape);
            const dist::Traffic before = axes.tensor->traffic();
            expect_part_of(trained_model(rank, 2, 5), expected);
            // One all-gather of the residual stream for each layer and micro-batch.
            const auto gathers = axes.tensor->traffic().since(before).calls(Purpose::kActivation);
            shape.partitions = false;
            PipelineRank unpartitioned(axes, shape);
            const dist::Traffic then = axes.tensor->traffic();
            trained_model(unpartitioned, 2, 5);
            const auto layers = rank.stage->last_layer() - rank.stage->first_layer();
            EXPECT_EQ(gathers - axes.tensor->traffic().since(then).calls(Purpose::kActivation),
                      partitions ? 2 * 5 * layers : 0);
          }
        }
      }
    }
  });
}

// The data axis as a mesh of 2 groups of 2, against chapter 00 that adds in the order of that mesh.
void expect_copies_like_chapter_00(int stages, int tensor_ranks) {
  on_ranks(4 * stages * tensor_ranks, [&](dist::Communicator& world) {
    const ThreeAxes axes(world, stages, tensor_ranks);
    for (const std::string mode : {"hsdp1", "hsdp2", "hsdp3"}) {
      for (const bool sequence : {false, true}) {
        if (sequence && tensor_ranks == 1) continue;
        SCOPED_TRACE(fmt::format("{}, sequence {}", mode, sequence));
        PipelineShape shape = shape_for(mode, sequence);
        shape.mode += ":shard_size=2";
        WholeRank reference(axes.of_stage, shape, "hddp:shard_size=2");
        const TrainedModel expected = trained_model(reference, 3, 2);
        EXPECT_THAT(expected.norms, Each(Gt(0.05F))) << "nothing is clipped";
        PipelineRank rank(axes, shape);
        expect_part_of(trained_model(rank, 3, 2), expected);
      }
    }
    // Chapter 00 without the mesh adds in another order.
    WholeRank flat(axes.of_stage, shape_for("ddp"));
    WholeRank tree(axes.of_stage, shape_for("ddp"), "hddp:shard_size=2");
    const TrainedModel a = trained_model(flat, 1, 2), b = trained_model(tree, 1, 2);
    bool same = true;
    for (const auto& [name, gradient] : a.gradients) {
      same = same && at::equal(gradient, b.gradients.at(name));
    }
    EXPECT_FALSE(same);
    world.barrier();
  });
}

TEST(MeshWithCopies, BesideATensorAxisHasTheBitsOfChapter00) {
  expect_copies_like_chapter_00(/*stages=*/1, /*tensor_ranks=*/2);
}

TEST(MeshWithCopies, BesideAPipelineHasTheBitsOfChapter00) {
  expect_copies_like_chapter_00(/*stages=*/2, /*tensor_ranks=*/1);
}

TEST(MeshErrors, WhatATensorAxisCannotSplitIsRefused) {
  on_mesh(1, [](const ThreeAxes& axes) {
    const nn::TensorParallel tensor(*axes.tensor, /*cut_sequence=*/true);
    expect_error([&] { LlamaStage(pipeline_config({}), 0, 2, tensor); }, {"2 tensor ranks"});
    LlamaStage stage(pipeline_config({.width = 2}), axes.pipeline->rank(), 2, tensor);
    expect_error([&] { stage.checkpoint_activations(true, {.partition_over = axes.tensor}); },
                 {"cannot be partitioned under sequence parallelism"});
    LlamaStage other(pipeline_config({.width = 2}), axes.pipeline->rank(), 2, *axes.tensor);
    expect_error([&] { other.checkpoint_activations(true, {.partition_over = axes.pipeline}); },
                 {"the model's tensor axis only"});
  });
}

}  // namespace
}  // namespace zero::testing

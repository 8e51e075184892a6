// A pipeline of stages against one trainer of the whole model with the same micro-batches: the same
// bits, and the bytes of its formulas.

#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <functional>
#include <limits>
#include <numeric>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/states.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::Gt;

using enum PipelineSchedule;

void expect_like_whole_model(const ThreeAxes& axes, const PipelineShape& shape, int count) {
  SCOPED_TRACE(fmt::format("{}, {} stages, {}, {}", shape.mode, axes.pipeline->size(),
                           name(shape.schedule), shape.tied ? "tied" : "untied"));
  PipelineRank rank(axes, shape);
  WholeRank whole(axes.of_stage, shape);
  const TrainedModel first = trained_model(rank, 0, count);
  expect_part_of(first, trained_model(whole, 0, count));
  const TrainedModel trained = trained_model(rank, 3, count);
  expect_part_of(trained, trained_model(whole, 3, count));
  EXPECT_THAT(trained.norms, Each(Gt(0.05F))) << "nothing is clipped";
  for (const auto& [name, weight] : trained.weights) {
    EXPECT_FALSE(at::equal(weight, first.weights.at(name))) << "was not trained: " << name;
  }
  const auto batches = rank.batches(9, 3);
  EXPECT_EQ(rank.trainer.evaluate(batches), whole.trainer.evaluate(batches));
}

class Pipeline : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Pipeline, ::testing::Values(1, 2, 3), name_of_ranks);

TEST_P(Pipeline, OneToFourStagesHaveTheBitsOfTheWholeModel) {
  for (const int stages : {1, 2, 4}) {
    if (stages * GetParam() > 8) continue;
    on_ranks(stages * GetParam(), [&](dist::Communicator& world) {
      const ThreeAxes axes(world, stages);
      for (const PipelineSchedule schedule : {kGPipe, kOneForwardOneBackward}) {
        for (const bool tied : {true, false}) {
          // Fewer micro-batches than stages as well, with one data rank.
          const std::vector<int> counts =
              GetParam() == 1 ? std::vector<int>{1, 3, 6} : std::vector<int>{3};
          for (const int count : counts) {
            expect_like_whole_model(axes, {.tied = tied, .schedule = schedule}, count);
          }
        }
      }
    });
  }
}

// Stage 3 if the head is not the embedding.
TEST_P(Pipeline, EveryStrategyHasTheBitsOfPlainDdp) {
  on_ranks(2 * GetParam(), [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    for (const std::string& mode : all_strategies()) {
      expect_like_whole_model(axes, {.mode = mode, .tied = !gathers_by_unit(mode)}, 3);
    }
  });
}

// One call a micro-batch, also for the shared weight, whose gradient is of two stages.
TEST_P(Pipeline, HooksOfParametersSeeWhatTheyDoInTheWholeModel) {
  on_ranks(2 * GetParam(), [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    for (const bool checkpoints : {false, true}) {
      const PipelineShape shape{.mode = "hsdp2", .checkpoints = checkpoints};
      PipelineRank rank(axes, shape);
      WholeRank whole(axes.of_stage, shape);
      for (torch::nn::Module* model : {static_cast<torch::nn::Module*>(rank.stage.get()),
                                       static_cast<torch::nn::Module*>(whole.model.get())}) {
        for (const at::Tensor& p : model->parameters()) {
          if (!p.requires_grad()) continue;
          p.register_hook([](const at::Tensor& gradient) { return gradient.clamp(-1e-3, 2e-3); });
        }
      }
      expect_part_of(trained_model(rank, 3, /*count=*/3), trained_model(whole, 3, /*count=*/3));
    }
  });
}

TEST(PipelineTraining, EveryMicroBatchMayBeReducedByItselfIfNoWeightIsShared) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    PipelineShape shape{.mode = "hsdp2", .tied = false};
    shape.accumulation = train::Accumulation::kReduceEach;
    expect_like_whole_model(axes, shape, 3);
  });
}

// Peak of the activations in the second step.
std::int64_t peak_of_activations(const ThreeAxes& axes, bool tied, PipelineSchedule schedule,
                                 int count) {
  PipelineRank rank(axes, {.tied = tied, .schedule = schedule});
  // Micro-batches of one size.
  const std::vector<data::Batch> batches(static_cast<std::size_t>(count),
                                         rank.batches(0, 1).front());
  rank.trainer.step(batches);
  rank.trainer.zero_grad();
  const std::int64_t before = memory::snapshot()[memory::Category::kActivations];
  memory::reset_peaks();
  rank.trainer.step(batches);
  return memory::snapshot().peak_of(memory::Category::kActivations) - before;
}

TEST(PipelineTraining, OneForwardOneBackwardHoldsTheActivationsOfItsPlaceGPipeAll) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 4);
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(tied ? "tied" : "untied");
      const int place = 4 - axes.pipeline->rank();
      const std::int64_t one = peak_of_activations(axes, tied, kGPipe, 1);
      const std::int64_t each =
          peak_of_activations(axes, tied, kGPipe, 6) - peak_of_activations(axes, tied, kGPipe, 5);
      const std::int64_t gpipe = peak_of_activations(axes, tied, kGPipe, 12);
      const std::int64_t alternating = peak_of_activations(axes, tied, kOneForwardOneBackward, 12);
      EXPECT_GT(each, 0);
      EXPECT_GE(gpipe, 12 * each);
      // Grows by nothing except the losses: the last stage keeps them until the end of the step.
      EXPECT_EQ(alternating + (place == 1 ? 4 * 4 : 0),
                peak_of_activations(axes, tied, kOneForwardOneBackward, 16));
      const std::int64_t rows = 2 * 7;
      const std::int64_t message = rows * 12 * 4;
      std::int64_t beside = 3 * message;  // in flight
      // First stage: embedding gradients in flight. Last: three heads, kept until these come, and
      // no inputs of the stage.
      if (tied && place == 4) beside += 4 * message;
      if (tied && place == 1) beside = 2 * message + 3 * (message + rows * 37 * 4);
      EXPECT_LE(alternating, one + (place - 1) * each + beside);
      EXPECT_LT(alternating, gpipe);
    }
  });
}

// Neither their inputs nor the messages that they have sent; the losses, of 4 bytes.
TEST(PipelineTraining, EvaluationHoldsAsMuchForManyBatchesAsForFew) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 4);
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(tied ? "tied" : "untied");
      PipelineRank rank(axes, {.tied = tied});
      const auto peak = [&](std::size_t count) {
        memory::reset_peaks();
        rank.trainer.evaluate(std::vector<data::Batch>(count, rank.batches(0, 1).front()));
        return memory::snapshot().peak_of(memory::Category::kActivations);
      };
      peak(4);
      EXPECT_EQ(peak(12), peak(4) + (rank.stage->is_last() ? 8 * 4 : 0));
    }
  });
}

// Lets `stage`'s gradient of the parameter whose name ends like this be infinite.
void poison(PipelineRank& rank, const std::string& ending) {
  rank.strategy->passes().observe_gradients([&rank, ending](std::size_t i, const at::Tensor& g) {
    if (rank.strategy->list().parameters[i].name.ends_with(ending)) {
      g.fill_(std::numeric_limits<float>::infinity());
    }
  });
}

TEST(PipelineTraining, AnInfiniteGradientOfOneStageStopsAllRanksAlike) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    for (const double clip : {0.0, 0.05}) {
      for (const std::string mode : {"ddp", "hsdp2"}) {
        PipelineShape shape{.mode = mode, .trainer = {.clip_norm = clip}};
        PipelineRank rank(axes, shape);
        const auto first = whole_weights(*rank.strategy);
        if (rank.data.rank() == 1) poison(rank, "layers.3.mlp.up_proj.weight");
        expect_error([&] { rank.step(0, 3); },
                     {"step 0", "'model.layers.3.mlp.up_proj.weight' is infinite or NaN on rank 3",
                      "no rank has changed its weights"});
        EXPECT_TRUE(same_bits(whole_weights(*rank.strategy), first));
        rank.strategy->passes().observe_gradients({});
        EXPECT_FALSE(rank.step(1, 3).skipped);
      }
    }
  });
}

TEST(PipelineTraining, AnInfiniteLossStopsAllRanksAlike) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    PipelineRank rank(axes, {});
    const auto first = whole_weights(*rank.strategy);
    if (rank.stage->is_last() && rank.data.rank() == 1) {
      const at::NoGradGuard no_grad;
      rank.strategy->list().parameters.back().tensor.fill_(std::numeric_limits<float>::infinity());
    }
    expect_error([&] { rank.step(0, 3); }, {"step 0", "the loss is infinite or NaN on rank 3"});
    if (!rank.stage->is_last()) {
      EXPECT_TRUE(same_bits(whole_weights(*rank.strategy), first));
    }
  });
}

TEST(PipelineTraining, MicroBatchesThatDifferBetweenStagesAreRefusedByAllRanks) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    PipelineRank rank(axes, {});
    expect_error(
        [&] { rank.step(0, world.rank() == 3 ? 2 : 3); },
        {"ranks disagree about the micro-batches of step 0, which the stages of a pipeline",
         "rank 2 has 3 with", "rank 3 has 2 with"});
    EXPECT_GT(rank.step(1, 2).loss, 0);
  });
}

// The last stage alone reads targets.
TEST(PipelineTraining, TargetsThatDoNotFitAreRefusedByAllRanks) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    PipelineRank rank(axes, {});
    std::vector<data::Batch> batches = rank.batches(0, 2);
    batches[1].targets = batches[1].targets.narrow(1, 0, 6);
    expect_error([&] { rank.trainer.step(batches); }, {"targets", "int64 [3, 7]"});
    expect_error([&] { rank.trainer.evaluate(batches); }, {"targets", "int64 [3, 7]"});
    EXPECT_GT(rank.step(1, 2).loss, 0);
  });
}

TEST(PipelineTraining, CheckpointsThatAreOffMayHaveAnySize) {
  dist::Communicator tensor = dist::connect_fake(/*rank=*/0, /*size=*/5);
  LlamaStage stage(pipeline_config({.width = 5}), /*stage=*/0, /*stages=*/2, tensor);
  const data::Batch odd = pipeline_batch({}, 0, 0, 1);  // 3 x 7 x 12 activations
  const nn::CheckpointOptions parts{.partition_over = &tensor};
  stage.checkpoint_activations(true, parts);
  expect_error(
      [&] {
        stage.check_batch({odd.inputs, odd.targets, odd.loss_terms});
      },
      {"252 elements", "5 tensor ranks"});
  stage.checkpoint_activations(false, parts);
  stage.check_batch({odd.inputs, odd.targets, odd.loss_terms});
}

TEST(PipelineTraining, WhatCannotBeSplitIsRefused) {
  expect_error([] { LlamaStage(pipeline_config({}), 0, 6); },
               {"stage 0 of 6", "at least one layer"});
  expect_error([] { LlamaStage(pipeline_config({}), 2, 2); }, {"stage 2 of 2"});
  nn::LlamaConfig classifier = pipeline_config({});
  classifier.classes = 3;
  expect_error([&] { LlamaStage(classifier, 0, 2); }, {"classifier"});
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    expect_error([&] { PipelineRank(axes, {.mode = "hsdp3", .tied = true}); },
                 {"share the embedding", "stages 0 to 2"});
    PipelineShape each{.mode = "hsdp2"};
    each.accumulation = train::Accumulation::kReduceEach;
    expect_error([&] { PipelineRank(axes, each); }, {"add up micro-batches"});
    PipelineShape schedules{.schedule =
                                axes.pipeline->rank() == 0 ? kGPipe : kOneForwardOneBackward};
    expect_error([&] { PipelineRank(axes, schedules); }, {"the pipeline", "gpipe", "1f1b"});
  });
}

// What is wrong in one stage is an error in the others, which would wait for it.
TEST(PipelineTraining, WhatCannotBeFrozenIsRefusedByAllRanks) {
  on_ranks(4, [](dist::Communicator& world) {
    const ThreeAxes axes(world, 2);
    const auto train = [&](bool tied, const std::string& frozen, PipelineShape shape = {}) {
      shape.tied = tied;
      const auto stage = PipelineRank::stage_on_device(axes, shape);
      for (const auto& p : stage->named_parameters()) {
        if (p.key().find(frozen) == 0) p.value().set_requires_grad(false);
      }
      nn::SeededValues values(3);
      const auto strategy = make_strategy(
          "ddp",
          {.module = *stage, .mesh = axes.mesh, .optimizer = shape.optimizer, .values = &values});
      tools::PipelineTrainer trainer(*stage, *strategy, shape.schedule, shape.trainer);
      return trainer.step(pipeline_batches(shape, axes.data->rank(), 0, 2)).loss;
    };
    expect_error([&] { train(true, "model.embed_tokens"); },
                 {"the embedding, which the first and the last stage share, is frozen"});
    EXPECT_GT(train(false, "model.embed_tokens"), 0);
    const std::string first = axes.pipeline->rank() == 0 ? "" : "none of these";
    expect_error([&] { train(false, first); },
                 {"parameters of a stage of a pipeline are frozen, 'model.embed_tokens.weight'"});
    PipelineShape shape;
    shape.optimizer = [&](const std::vector<at::Tensor>& parameters) {
      if (axes.pipeline->rank() == 1) throw Error("no optimizer for the last stage");
      return optim::adamw()(parameters);
    };
    expect_error([&] { train(false, "none of these", shape); }, {"no optimizer for the last"});
  });
}

// Phase and ranks of the tensor axis; four ranks and two stages.
using FaultPlace = std::tuple<std::string, int>;
class PipelineFault : public ::testing::TestWithParam<FaultPlace> {};
INSTANTIATE_TEST_SUITE_P(Phases, PipelineFault,
                         ::testing::Combine(::testing::Values("forward", "backward", "update"),
                                            ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) > 1 ? "_of_a_tensor_axis" : "");
                         });

// Of the other three one is beside it on the data or the tensor axis, one on the pipeline axis, and
// one on none.
TEST_P(PipelineFault, AKilledRankIsAnErrorOnAllOtherRanks) {
  const auto& [phase, tensor_ranks] = GetParam();
  constexpr int kVictim = 1;  // stage 1 of data rank 0; with a tensor axis stage 0
  const auto exits =
      ranks_ended({.world_size = 4, .timeout = std::chrono::seconds(2)},
                  [&, phase = phase, ranks = tensor_ranks](dist::Communicator& world) {
                    int step = 0;
                    const auto strike = [&](const std::string& here) {
                      if (here == phase && step == 1 && world.rank() == kVictim) ::raise(SIGKILL);
                    };
                    const ThreeAxes axes(world, 2, ranks);
                    PipelineShape shape{.width = ranks};
                    shape.optimizer = hooked(shape.optimizer, [&] { strike("update"); });
                    PipelineRank rank(axes, shape);
                    rank.strategy->passes().observe_gradients(
                        [&](std::size_t, const at::Tensor&) { strike("backward"); });
                    for (; step < 50; ++step) {
                      strike("forward");
                      rank.step(step, 3);
                    }
                  });
  EXPECT_EQ(exits[kVictim].signal, SIGKILL);
  for (const dist::RankExit& exit : exits) {
    if (exit.rank == kVictim) continue;
    EXPECT_EQ(exit.exit_code, 1) << exit.output;
    EXPECT_FALSE(exit.killed) << "did not end by itself: " << exit.output;
    EXPECT_THAT(exit.output,
                ContainsRegex("[a-z_]+ #[0-9]+ \\([a-z]+, [0-9]+ bytes\\).* step [0-9]+: .*rank"));
  }
}

}  // namespace
}  // namespace zero::testing

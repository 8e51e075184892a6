// A pipeline of stages against one trainer of the whole model with the same micro-batches: the same
// bits, and the bytes of its formulas.

#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <functional>
#include <limits>
#include <numeric>

#include <06_device_mesh/pipeline_trainer.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr auto kGPipe = PipelineSchedule::kGPipe;
constexpr auto k1F1B = PipelineSchedule::kOneForwardOneBackward;

const optim::AdamWOptions kAdamW{.learning_rate = 0.01};

// Odd sizes; 5 layers give stages of different sizes.
nn::LlamaConfig config(bool tied) {
  nn::LlamaConfig config;
  config.vocabulary = 37;
  config.hidden = 12;
  config.layers = 5;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_size = 6;
  config.mlp = 19;
  config.tied = tied;
  config.initializer_range = 0.2;
  return config;
}

// Ranks have different tokens; micro-batches have different numbers of loss terms and of samples.
data::Batch micro_batch(int data_rank, int step, int m, std::int64_t tokens = 7) {
  at::Generator generator = at::detail::createCPUGenerator(
      static_cast<std::uint64_t>(10000 * data_rank + 100 * step + m + 1));
  const auto draw = [&] {
    return at::randint(0, 37, {m % 2 + 2, tokens}, generator, at::TensorOptions(at::kLong));
  };
  data::Batch batch{.inputs = draw(), .targets = draw()};
  batch.targets.view({-1}).narrow(0, 0, m % 3).fill_(data::kIgnoredTarget);
  batch.loss_terms = batch.targets.numel() - m % 3;
  return batch;
}

std::vector<data::Batch> micro_batches(int data_rank, int step, int count,
                                       std::int64_t tokens = 7) {
  std::vector<data::Batch> batches;
  for (int m = 0; m < count; ++m) batches.push_back(micro_batch(data_rank, step, m, tokens));
  return batches;
}

struct PipelineShape {
  int stages = 2;
  std::string mode = "ddp";
  bool tied = true;
  PipelineSchedule schedule = k1F1B;
  train::TrainerOptions trainer = {.clip_norm = 0.05};
  std::function<void()> before_update = {};
  train::Accumulation accumulation = train::Accumulation::kLocal;
};

// One rank of a grid: rank = stage * (data ranks) + data rank.
struct Grid {
  Grid(dist::Communicator& world, int stages) {
    const int data_size = world.size() / stages;
    std::vector<int> same_stage(static_cast<std::size_t>(data_size));
    std::vector<int> same_data(static_cast<std::size_t>(stages));
    const int stage = world.rank() / data_size;
    const int data_rank = world.rank() % data_size;
    std::iota(same_stage.begin(), same_stage.end(), stage * data_size);
    for (int s = 0; s < stages; ++s) {
      same_data[static_cast<std::size_t>(s)] = s * data_size + data_rank;
    }
    static int made = 0;  // a label is used once
    ++made;
    data = world.split(same_stage, fmt::format("stage {} of grid {}", stage, made));
    pipeline = world.split(same_data, fmt::format("data rank {} of grid {}", data_rank, made));
  }
  std::unique_ptr<dist::Communicator> data, pipeline;
};

struct PipelineRank {
  PipelineRank(Grid& grid, const PipelineShape& shape)
      : data(*grid.data),
        pipeline(*grid.pipeline),
        stage(std::make_shared<LlamaStage>(config(shape.tied), pipeline.rank(), shape.stages)),
        strategy(make_strategy(
            shape.mode, {*stage, data,
                         shape.before_update ? hooked(optim::adamw(kAdamW), shape.before_update)
                                             : optim::adamw(kAdamW),
                         &values, "", train::Ownership::kBySize, shape.accumulation})),
        trainer(*stage, *strategy, pipeline, shape.schedule, shape.trainer) {}

  train::StepResult step(int number, int count, std::int64_t tokens = 7) {
    return trainer.step(micro_batches(data.rank(), number, count, tokens));
  }

  dist::Communicator& data;
  dist::Communicator& pipeline;
  nn::SeededValues values{3};
  std::shared_ptr<LlamaStage> stage;
  std::unique_ptr<train::Strategy> strategy;
  PipelineTrainer trainer;
};

// The whole model under plain DDP on the same data axis. Every stage has one, to compare with.
struct WholeRank {
  WholeRank(dist::Communicator& data, const PipelineShape& shape)
      : model(make_deferred<nn::Llama>(config(shape.tied))),
        strategy(make_strategy("ddp", {*model, data, optim::adamw(kAdamW), &values, "",
                                       train::Ownership::kBySize, shape.accumulation})),
        trainer(*strategy, shape.trainer) {}

  // Of the named parameters, in the order of `list`.
  std::vector<at::Tensor> of(const nn::ParameterList& list, const std::vector<at::Tensor>& mine) {
    std::vector<at::Tensor> found;
    for (const nn::Parameter& p : list.parameters) {
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (strategy->list().parameters[i].name == p.name) found.push_back(mine[i]);
      }
    }
    return found;
  }

  nn::SeededValues values{3};
  std::shared_ptr<nn::Llama> model;
  std::unique_ptr<train::Strategy> strategy;
  train::Trainer trainer;
};

void expect_like_whole_model(Grid& grid, const PipelineShape& shape, int count) {
  SCOPED_TRACE(fmt::format("{}, {} stages, {}, {}", shape.mode, shape.stages, name(shape.schedule),
                           shape.tied ? "tied" : "untied"));
  PipelineRank rank(grid, shape);
  WholeRank whole(*grid.data, shape);
  const nn::ParameterList& list = rank.strategy->list();
  const std::vector<at::Tensor> first = whole.of(list, whole_weights(*whole.strategy));
  EXPECT_TRUE(same_bits(whole_weights(*rank.strategy), first)) << "first values";
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    const train::StepResult mine = rank.step(step, count);
    const train::StepResult expected =
        whole.trainer.step(micro_batches(grid.data->rank(), step, count));
    EXPECT_EQ(mine.loss, expected.loss);
    EXPECT_EQ(mine.gradient_norm, expected.gradient_norm);
    EXPECT_GT(mine.gradient_norm, 0.05F) << "nothing is clipped";
    std::vector<at::Tensor> gradients = whole.of(list, whole_gradients(*whole.strategy));
    // The first stage's copy of a shared weight is frozen.
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!list.parameters[i].tensor.requires_grad()) gradients[i] = at::Tensor();
    }
    EXPECT_TRUE(same_bits(whole_gradients(*rank.strategy), gradients));
  }
  const std::vector<at::Tensor> weights = whole_weights(*rank.strategy);
  EXPECT_TRUE(same_bits(weights, whole.of(list, whole_weights(*whole.strategy))));
  EXPECT_FALSE(at::equal(weights.front(), first.front())) << "nothing was trained";
  const auto batches = micro_batches(grid.data->rank(), 9, 3);
  EXPECT_EQ(rank.trainer.evaluate(batches), whole.trainer.evaluate(batches));
}

class Pipeline : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Pipeline, ::testing::Values(1, 2, 3), name_of_ranks);

TEST_P(Pipeline, OneToFourStagesHaveTheBitsOfTheWholeModel) {
  for (const int stages : {1, 2, 4}) {
    if (stages * GetParam() > 8) continue;
    on_ranks(stages * GetParam(), [&](dist::Communicator& world) {
      Grid grid(world, stages);
      for (const PipelineSchedule schedule : {kGPipe, k1F1B}) {
        for (const bool tied : {true, false}) {
          // Fewer micro-batches than stages as well.
          for (const int count : {1, 3, 6}) {
            expect_like_whole_model(grid, {.stages = stages, .tied = tied, .schedule = schedule},
                                    count);
          }
        }
      }
    });
  }
}

TEST_P(Pipeline, EveryStrategyThatKeepsParametersWholeHasTheBitsOfPlainDdp) {
  on_ranks(2 * GetParam(), [](dist::Communicator& world) {
    Grid grid(world, 2);
    for (const std::string& mode : all_strategies()) {
      if (gathers_by_unit(mode)) continue;
      expect_like_whole_model(grid, {.mode = mode}, 3);
    }
  });
}

TEST_P(Pipeline, Stage3HasTheBitsOfPlainDdpIfTheHeadIsNotTheEmbedding) {
  on_ranks(2 * GetParam(), [](dist::Communicator& world) {
    Grid grid(world, 2);
    for (const std::string& mode : all_strategies()) {
      if (gathers_by_unit(mode)) expect_like_whole_model(grid, {.mode = mode, .tied = false}, 3);
    }
  });
}

TEST(PipelineTraining, EveryMicroBatchMayBeReducedByItselfIfNoWeightIsShared) {
  on_ranks(4, [](dist::Communicator& world) {
    Grid grid(world, 2);
    PipelineShape shape{.mode = "zero2", .tied = false};
    shape.accumulation = train::Accumulation::kReduceEach;
    expect_like_whole_model(grid, shape, 3);
  });
}

TEST_P(Pipeline, ModelStatesAndBytesSentAreThoseOfTheFormulas) {
  on_ranks(2 * GetParam(), [](dist::Communicator& world) {
    Grid grid(world, 2);
    for (const std::string mode : {"ddp", "zero1", "zero2"}) {
      for (const bool tied : {true, false}) {
        SCOPED_TRACE(mode + (tied ? ", tied" : ""));
        const memory::Snapshot before = memory::snapshot();
        PipelineRank rank(grid, {.mode = mode, .tied = tied});
        rank.step(0, 5);
        const dist::Traffic earlier = rank.pipeline.traffic();
        rank.step(1, 5);
        const dist::Traffic sent = rank.pipeline.traffic().since(earlier);
        EXPECT_EQ(text_of(states_since(before)), text_of(rank.strategy->costs().at_rest));
        const auto batches = micro_batches(rank.data.rank(), 1, 5);
        EXPECT_EQ(sent.bytes(Purpose::kActivation) + sent.bytes(Purpose::kParameter),
                  pipeline_bytes(*rank.stage, batches));
        EXPECT_EQ(sent.bytes(Purpose::kGradient), 0);
        // All stages together hold the model once, a shared weight twice.
        const std::vector<double> of_stages = dist::all_gather_scalars(
            rank.pipeline, {static_cast<double>(rank.strategy->list().bytes())});
        const nn::LlamaConfig c = config(tied);
        EXPECT_EQ(std::accumulate(of_stages.begin(), of_stages.end(), 0.0),
                  4.0 * static_cast<double>(c.parameters() + (tied ? c.vocabulary * c.hidden : 0)));
      }
    }
  });
}

// Peak of the activations in the second step.
std::int64_t peak_of_activations(Grid& grid, bool tied, PipelineSchedule schedule, int count) {
  PipelineRank rank(grid, {.stages = 4, .tied = tied, .schedule = schedule});
  // Micro-batches of one size.
  const std::vector<data::Batch> batches(static_cast<std::size_t>(count),
                                         micro_batch(rank.data.rank(), 0, 0));
  rank.trainer.step(batches);
  rank.trainer.zero_grad();
  const std::int64_t before = memory::snapshot()[memory::Category::kActivations];
  memory::reset_peaks();
  rank.trainer.step(batches);
  return memory::snapshot().peak_of(memory::Category::kActivations) - before;
}

TEST(PipelineTraining, OneForwardOneBackwardHoldsTheActivationsOfItsPlaceGPipeAll) {
  on_ranks(4, [](dist::Communicator& world) {
    Grid grid(world, 4);
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(tied ? "tied" : "untied");
      const int place = 4 - grid.pipeline->rank();
      const std::int64_t one = peak_of_activations(grid, tied, kGPipe, 1);
      const std::int64_t each =
          peak_of_activations(grid, tied, kGPipe, 6) - peak_of_activations(grid, tied, kGPipe, 5);
      const std::int64_t gpipe = peak_of_activations(grid, tied, kGPipe, 12);
      const std::int64_t alternating = peak_of_activations(grid, tied, k1F1B, 12);
      EXPECT_GT(each, 0);
      EXPECT_GE(gpipe, 12 * each);
      EXPECT_EQ(alternating, peak_of_activations(grid, tied, k1F1B, 16)) << "does not grow";
      const std::int64_t rows = 2 * 7;
      const std::int64_t message = rows * 12 * 4;
      std::int64_t beside = 3 * message;  // in flight
      // First stage: embedding gradients in flight. Last: heads, kept until these come.
      if (tied && place == 4) beside += 4 * message;
      if (tied && place == 1) beside += 4 * (message + rows * 37 * 4);
      EXPECT_LE(alternating, one + (place - 1) * each + beside);
      EXPECT_LT(alternating, gpipe);
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
    Grid grid(world, 2);
    for (const double clip : {0.0, 0.05}) {
      for (const std::string mode : {"ddp", "zero2"}) {
        PipelineShape shape{.mode = mode, .trainer = {.clip_norm = clip}};
        PipelineRank rank(grid, shape);
        const auto first = whole_weights(*rank.strategy);
        if (rank.data.rank() == 1) poison(rank, "layers.3.mlp.up_proj.weight");
        expect_error([&] { rank.step(0, 3); },
                     {"step 0", "'model.layers.3.mlp.up_proj.weight' is infinite or NaN on rank 1",
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
    Grid grid(world, 2);
    PipelineRank rank(grid, {});
    const auto first = whole_weights(*rank.strategy);
    if (rank.stage->is_last() && rank.data.rank() == 1) {
      const at::NoGradGuard no_grad;
      rank.strategy->list().parameters.back().tensor.fill_(std::numeric_limits<float>::infinity());
    }
    expect_error([&] { rank.step(0, 3); }, {"step 0", "the loss is NaN or infinite on rank 1"});
    if (!rank.stage->is_last()) {
      EXPECT_TRUE(same_bits(whole_weights(*rank.strategy), first));
    }
  });
}

TEST(PipelineTraining, MicroBatchesThatDifferBetweenStagesAreRefusedByAllRanks) {
  on_ranks(4, [](dist::Communicator& world) {
    Grid grid(world, 2);
    PipelineRank rank(grid, {});
    expect_error([&] { rank.step(0, world.rank() == 3 ? 2 : 3); },
                 {"step 0", "the stages of a pipeline have different micro-batches"});
    EXPECT_GT(rank.step(1, 2).loss, 0);
  });
}

TEST(PipelineTraining, WhatCannotBeSplitIsRefused) {
  expect_error([] { LlamaStage(config(true), 0, 6); }, {"stage 0 of 6", "at least one layer"});
  expect_error([] { LlamaStage(config(true), 2, 2); }, {"stage 2 of 2"});
  nn::LlamaConfig classifier = config(true);
  classifier.classes = 3;
  expect_error([&] { LlamaStage(classifier, 0, 2); }, {"classifier"});
  on_ranks(4, [](dist::Communicator& world) {
    Grid grid(world, 2);
    expect_error([&] { PipelineRank(grid, {.mode = "zero3", .tied = true}); },
                 {"share the embedding", "stages 0 to 2"});
    PipelineShape each{.mode = "zero2"};
    each.accumulation = train::Accumulation::kReduceEach;
    expect_error([&] { PipelineRank(grid, each); }, {"add up micro-batches"});
    PipelineShape schedules{.schedule = grid.pipeline->rank() == 0 ? kGPipe : k1F1B};
    expect_error([&] { PipelineRank(grid, schedules); }, {"the pipeline", "gpipe", "1f1b"});
  });
}

class PipelineFault : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Phases, PipelineFault, ::testing::Values("forward", "backward", "update"),
                         [](const auto& info) { return info.param; });

TEST_P(PipelineFault, AKilledStageIsAnErrorOnAllOtherRanks) {
  constexpr int kVictim = 2;  // stage 1, data rank 0
  const std::string phase = GetParam();
  const auto exits = ranks_ended({.world_size = 4, .timeout = std::chrono::seconds(2)},
                                 [&](dist::Communicator& world) {
                                   int step = 0;
                                   const auto strike = [&](const std::string& here) {
                                     if (here == phase && step == 1 && world.rank() == kVictim)
                                       ::raise(SIGKILL);
                                   };
                                   Grid grid(world, 2);
                                   PipelineShape shape;
                                   shape.before_update = [&] { strike("update"); };
                                   PipelineRank rank(grid, shape);
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

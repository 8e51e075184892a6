// What is wrong on one rank, or differs, is an error on the ranks of all axes.

#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/split_engine.hpp>

namespace zero::testing {
namespace {

constexpr auto kStages = {0, 1, 2, 3};

TEST(OnATensorAxis, WhatIsWrongOnOneOfItsRanksIsAnErrorOnAll) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    const bool culprit = communicator.rank() == 1;
    for (const int stage : kStages) {
      SCOPED_TRACE(stage);
      SplitEngine run(axes, stage), undisturbed(axes, stage);
      const at::Tensor loss = run.forward(0);
      expect_error([&] { run.engine.backward(culprit ? loss.detach() : loss); },
                   {"is not one real number with a gradient on rank 1:"});
      const at::Tensor weight = run.model->parameters().front();
      weight.set_requires_grad(!culprit);
      expect_error(
          [&] { run.engine.backward(loss); },
          {"ranks disagree about which parameters are trained: rank 0", "rank 1", "frozen"});
      weight.set_requires_grad(true);
      run.engine.backward(loss);
      if (culprit) weight.mutable_grad().reset();
      expect_error([&] { run.engine.step(); },
                   {stage == 0 ? "what was done to gradients" : "was set or reset on rank 1"});
      run.engine.backward(run.forward(0));
      optim::Optimizer& optimizer = run.engine.strategy().optimizer();
      optimizer.set_learning_rate(culprit ? 0.02 : 0.01);
      expect_error([&] { run.engine.step(); },
                   {"ranks disagree about the optimizer's settings", "rank 1"});
      for (SplitEngine* both : {&run, &undisturbed}) {
        both->engine.strategy().optimizer().set_learning_rate(0.01);
      }
      for (SplitEngine* both : {&run, &undisturbed}) both->step(1);
      EXPECT_TRUE(same_bits(whole_weights(run.engine.strategy()),
                            whole_weights(undisturbed.engine.strategy())));
    }
  });
}

// Not by their places on the data axis: those of this mesh are ranks 0 and 2, and 1 and 3.
TEST(OnATensorAxis, RanksWithALossOfTheirOwnAreNamedByTheirNumbersInTheWorld) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    SplitEngine run(axes, /*stage=*/2);
    const data::Batch batch = split_batch(run.rank, 0);
    const bool own = run.rank == 1;
    const at::Tensor loss =
        own ? data::loss_of(*run.model, batch) : forward_batch(run.engine, batch);
    expect_error([&] { run.engine.backward(loss); },
                 {"the loss of micro-batch 1 on ranks 2, 3 was not computed from what"});
  });
}

// What the other rank of the tensor axis says does not count a second time.
TEST(OnATensorAxis, MetricsAreThoseOfTheTrainer) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    SplitRun trained(axes.mesh, {.sequence = true, .trainer = {.clip_norm = 1e9}});
    const tools::StepResult expected = trained.step(0);
    for (const int stage : kStages) {
      SCOPED_TRACE(stage);
      SplitEngine run(axes, stage);
      StepMetrics metrics;
      run.engine.on_step([&](const StepMetrics& of_step) { metrics = of_step; });
      run.step(0);
      EXPECT_EQ(metrics.loss_terms, 32);  // 16 on each rank of the data axis
      EXPECT_EQ(metrics.loss, expected.loss);
      EXPECT_FLOAT_EQ(metrics.gradient_norm, expected.gradient_norm);
    }
  });
}

TEST(OnAPipelineAxis, AnEngineIsRefusedByName) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const ThreeAxes axes(communicator, 2);
    const PipelineShape shape{.tied = false};
    LlamaStage stage(pipeline_config(shape), axes.pipeline->rank(), axes.pipeline->size());
    nn::SeededValues values(3);
    expect_error(
        [&] { Engine(stage, axes.mesh, optim::adamw(), {}, nn::default_units(), &values); },
        {"an engine on a mesh of", "pipeline 2", "PipelinePasses"});
  });
}

}  // namespace
}  // namespace zero::testing

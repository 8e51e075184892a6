// What is wrong on one rank, or differs, is an error on the ranks of all axes.

#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/split_engine.hpp>
#include <zero/distributed/agreement.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

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

// An engine over one stage of a pipeline. Its neighbours' tensors are made up.
struct StageEngine {
  StageEngine(const ThreeAxes& axes, int stage_of_zero)
      : stage(pipeline_config(shape), axes.pipeline->rank(), axes.pipeline->size()),
        engine(stage, axes.mesh, optim::adamw(), {.stage = stage_of_zero}, nn::default_units(),
               &values),
        rank(axes.data->rank()) {}
  at::Tensor forward(int number) {
    const data::Batch batch = pipeline_batch(shape, rank, number, 0);
    pass = c10::make_intrusive<StagePass>();
    pass->input =
        at::randn_like(stage.empty_activations({batch.inputs, batch.targets})).requires_grad_();
    pass->output_gradient = at::randn_like(pass->input);
    stage.set_pass(pass);
    return engine.forward(
        [&] {
          return stage.loss({batch.inputs, batch.targets, batch.loss_terms});
        },
        batch.loss_terms);
  }
  bool step(int number) {
    engine.backward(forward(number));
    return engine.step();
  }

  PipelineShape shape{.tied = false};
  nn::SeededValues values{3};
  LlamaStage stage;
  Engine engine;
  int rank;
  c10::intrusive_ptr<StagePass> pass;
};

TEST(OnAPipelineAxis, WhatIsWrongOnOneOfItsRanksIsAnErrorOnAll) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const ThreeAxes axes(communicator, 2);
    const bool culprit = communicator.rank() == 1;
    for (const int stage : kStages) {
      SCOPED_TRACE(stage);
      StageEngine run(axes, stage);
      const at::Tensor loss = run.forward(0);
      expect_error([&] { run.engine.backward(culprit ? loss.detach() : loss); },
                   {"is not one real number with a gradient on rank 1:"});
      run.engine.backward(loss);
      EXPECT_TRUE(run.engine.step());
      EXPECT_TRUE(run.step(1));
    }
  });
}

// Whatever the stage before it has in place of a loss.
TEST(OnAPipelineAxis, TheLossIsThatOfTheLastStage) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const ThreeAxes axes(communicator, 2);
    for (const int stage : kStages) {
      SCOPED_TRACE(stage);
      StageEngine run(axes, stage);
      StepMetrics metrics;
      run.engine.on_step([&](const StepMetrics& of_step) { metrics = of_step; });
      const at::Tensor loss = run.forward(0);
      run.engine.backward(axes.pipeline->rank() == 1 ? loss : loss + 1);
      EXPECT_TRUE(run.engine.step());
      const auto all = dist::all_gather_scalars(communicator, {loss.item<double>()});
      EXPECT_DOUBLE_EQ(metrics.loss, (all[1] + all[3]) / 2);
      EXPECT_EQ(metrics.loss_terms, 28);  // 14 on each rank of the data axis
    }
  });
}

TEST(OnAPipelineAxis, StagesShareTheTermsOfAMicroBatch) {
  const auto exits = ranks_ended({.world_size = 4}, [](dist::Communicator& communicator) {
    const ThreeAxes axes(communicator, 2);
    StageEngine run(axes, /*stage_of_zero=*/1);
    const at::Tensor loss = run.forward(0);
    run.engine.backward(communicator.rank() == 0 ? loss.detach().requires_grad_() : loss);
  });
  expect_errors(exits,
                HasSubstr("ranks disagree about the micro-batch, which ranks of one tensor or "
                          "pipeline axis share: rank 0 has a loss of its own, rank 1 has"));
}

}  // namespace
}  // namespace zero::testing

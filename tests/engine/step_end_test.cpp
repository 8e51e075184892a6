// How a step ends: gradients and losses that are not finite, settings that differ between ranks,
// what is left after an error, and what may be read after step().

#include <ATen/ops/allclose.h>
#include <fmt/format.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/random_model.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/scripted_model.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/train/loop/trainer.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(StepEnd, 2, 3);

TEST_P(StepEnd, AGradientThatIsNotFiniteIsAnErrorThatNamesParameterAndRanks) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const double clip_norm : {0.0, 1.0}) {
      SCOPED_TRACE(clip_norm);
      const EngineConfig config{.overlap = {.stage = stage}, .clip_norm = clip_norm};
      EngineRun ill(communicator, config), well(communicator, config);
      ill.step(0);
      well.step(0);
      const std::vector<at::Tensor> before = ill.weights();
      ill.make_gradient_infinite(communicator.rank() == 1);
      expect_error([&] { ill.step(1); },
                   {"step 1: the gradient of 'layers.0.linear.bias' is infinite or NaN on "
                    "rank 1; no rank has changed its weights"});
      ill.make_gradient_infinite(true);
      expect_error([&] { ill.step(1); },
                   {communicator.size() == 2 ? "on ranks 0, 1;" : "on ranks 0, 1, 2;"});
      EXPECT_EQ(ill.engine.steps(), 1);
      EXPECT_EQ(ill.engine.skipped_steps(), 0);
      EXPECT_TRUE(same_bits(ill.weights(), before));
      ill.make_gradient_infinite(false);
      for (int s = 1; s < 3; ++s) {
        EXPECT_TRUE(ill.step(s));
        EXPECT_TRUE(well.step(s));
      }
      EXPECT_TRUE(same_bits(ill.weights(), well.weights()));
    }
  });
}

TEST_P(StepEnd, AGradientThatIsNotFiniteMaySkipTheStep) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineConfig config{.overlap = {.stage = stage}};
    EngineRun well(communicator, config);
    config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
    EngineRun ill(communicator, config);
    for (int s = 0; s < 3; ++s) {
      ill.make_gradient_infinite(false);
      EXPECT_TRUE(ill.step(s));
      ill.make_gradient_infinite(communicator.rank() == communicator.size() - 1);
      EXPECT_FALSE(ill.step(s));
      EXPECT_TRUE(well.step(s));
    }
    EXPECT_EQ(ill.engine.skipped_steps(), 3);
    EXPECT_EQ(ill.engine.steps(), 3);
    EXPECT_TRUE(same_bits(ill.weights(), well.weights()));
  });
}

// An infinity in the gradient of one parameter, on one rank, of every mode, reduced at the end or
// after each micro-batch.
TEST_P(StepEnd, TheTrainerTakesNoGradientThatIsNotFinite) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    const int culprit = communicator.size() - 1;
    for (const auto accumulation :
         {train::Accumulation::kLocal, train::Accumulation::kReduceEach}) {
      const bool local = accumulation == train::Accumulation::kLocal;
      Toy toy;
      const auto strategy = make_strategy(mode, {.model = *toy.model,
                                                 .mesh = communicator,
                                                 .optimizer = optim::adamw(),
                                                 .values = &toy.values,
                                                 .accumulation = accumulation});
      const auto batches = [&](int s) {
        return std::vector{toy.batch(communicator.rank(), 2 * s),
                           toy.batch(communicator.rank(), 2 * s + 1)};
      };
      train::Trainer trainer(*strategy);
      trainer.step(batches(0));
      const std::vector<at::Tensor> before = whole_weights(*strategy);
      const std::size_t bad = 3;
      strategy->passes().observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
        if (i != bad || communicator.rank() != culprit) return;
        gradient.detach().view({-1})[0].fill_(std::numeric_limits<double>::infinity());
      });
      expect_error([&] { trainer.step(batches(1)); },
                   {fmt::format("the gradient of '{}' is infinite or NaN",
                                strategy->list().parameters[bad].name),
                    local ? fmt::format("on rank {};", culprit) : "on rank"});
      for (std::size_t i = 0; i < strategy->list().size(); ++i) {
        const at::Tensor mine = strategy->piece(i).tensor;
        EXPECT_FALSE(mine.defined() && mine.grad().defined()) << "kept a gradient";
      }
      EXPECT_TRUE(same_bits(whole_weights(*strategy), before));
      train::Trainer skips(*strategy, {.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip});
      EXPECT_TRUE(skips.step(batches(1)).skipped);
      EXPECT_EQ(skips.skipped_steps(), 1);
      EXPECT_TRUE(same_bits(whole_weights(*strategy), before));
      strategy->passes().observe_gradients({});
      EXPECT_FALSE(trainer.step(batches(1)).skipped);
    }
  });
}

// Of the second parameter, on rank 0; zeros on the others. A sum of them is finite.
void make_gradient_large(train::Strategy& strategy, float value) {
  strategy.passes().observe_gradients(
      [&strategy, value](std::size_t i, const at::Tensor& gradient) {
        if (i == 1) gradient.detach().fill_(strategy.communicator().rank() == 0 ? value : 0);
      });
}

// Every average was finite when it was made. The first micro-batch has nearly all loss terms, so in
// the end the sum counts nearly four times.
TEST_P(StepEnd, AnAverageThatOverflowsAsItsLossTermsAreKnownIsRefused) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = 4});
    const std::vector<at::Tensor> before = run.weights();
    make_gradient_large(run.engine.strategy(), 3e38F);
    expect_error(
        [&] {
          for (int m = 0; m < 4; ++m) {
            data::Batch batch = run.toy.batch(run.rank, m);
            batch.loss_terms = m == 0 ? 1000 : 1;
            run.step(batch);
          }
        },
        {"step 0", "'layers.0.linear.bias' is infinite or NaN"});
    EXPECT_TRUE(same_bits(run.weights(), before));
  });
}

TEST_P(StepEnd, AveragesThatOverflowAsTheyAreAddedUpAreRefused) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    Toy toy;
    const auto strategy = make_strategy(mode, {.model = *toy.model,
                                               .mesh = communicator,
                                               .optimizer = optim::adamw(),
                                               .values = &toy.values,
                                               .accumulation = train::Accumulation::kReduceEach});
    train::Trainer trainer(*strategy);
    const std::vector<at::Tensor> before = whole_weights(*strategy);
    make_gradient_large(*strategy, 3e38F);
    std::vector<data::Batch> batches;
    for (int m = 0; m < 4; ++m) batches.push_back(toy.batch(communicator.rank(), m));
    expect_error([&] { trainer.step(batches); },
                 {"step 0", "'layers.0.linear.bias' is infinite or NaN"});
    EXPECT_TRUE(same_bits(whole_weights(*strategy), before));
  });
}

TEST_P(StepEnd, AnOverflowAtALossScaleOfOneLeavesNothingBehind) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const bool wide : {false, true}) {
      SCOPED_TRACE(wide);
      const EngineConfig config{
          .overlap = {.stage = stage}, .reduce_in_float32 = wide, .loss_scale = {.initial = 1}};
      const auto optimizer = optim::with_master_weights(optim::adamw());
      EngineRun ill(communicator, config, optimizer, at::kHalf);
      EngineRun well(communicator, config, optimizer, at::kHalf);
      ill.make_gradient_infinite(communicator.rank() == 1);
      expect_error([&] { ill.step(0); }, {"infinite or NaN on rank 1 at", "loss scale of 1"});
      ill.make_gradient_infinite(false);
      for (int s = 0; s < 3; ++s) {
        EXPECT_TRUE(ill.step(s));
        EXPECT_TRUE(well.step(s));
      }
      EXPECT_EQ(ill.engine.steps(), 3);
      EXPECT_TRUE(same_bits(ill.weights(), well.weights()));
    }
  });
}

TEST_P(StepEnd, LossesOfAStepThatWasGivenUpDoNotCount) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = 2});
    data::Batch bad = run.toy.batch(run.rank, 0);
    bad.inputs[0][0] = std::nanf("");
    run.engine.backward(run.engine.forward(bad));
    run.engine.give_up_step();
    EXPECT_FALSE(run.step(0));
    EXPECT_EQ(error_of([&] { EXPECT_TRUE(run.step(1)); }), "");
    EXPECT_EQ(run.engine.steps(), 1);
  });
}

// Not even where an evaluation follows, which has no backward.
TEST_P(StepEnd, AForwardThatThrowsLeavesNoUnitWhole) {
  on_modes(GetParam(), stage_3_modes(),
           [](dist::Communicator& communicator, const std::string& mode) {
             const memory::Snapshot before = memory::snapshot();
             ScriptedRun run(communicator, mode);
             run.step(0);
             run.model->in_forward = [] { throw Error("stop"); };
             EXPECT_EQ(error_of([&] { run.strategy->forward(run.batch(1)); }), "stop");
             run.model->in_forward = {};
             const c10::NoGradGuard no_grad;
             run.strategy->forward(run.batch(1));
             EXPECT_EQ(memory::snapshot()[memory::Category::kParameters] -
                           before[memory::Category::kParameters],
                       run.strategy->costs().at_rest.parameters);
           });
}

// The program's own: its gradients are dropped, and their buffers before the next forward.
TEST_P(StepEnd, AnotherBackwardLeavesNoGradients) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const memory::Snapshot before = memory::snapshot();
    EngineRun run(communicator, {.overlap = {.stage = stage, .keep_gradients = false}});
    run.step(0);
    run.toy.model->loss(run.toy.batch(run.rank, 1)).backward();
    const at::Tensor loss = run.forward(2);
    EXPECT_EQ(
        memory::snapshot()[memory::Category::kGradients] - before[memory::Category::kGradients], 0);
  });
}

TEST_P(StepEnd, StatesOfAParameterThatWasFrozenLaterAreCounted) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const memory::Snapshot before = memory::snapshot();
    EngineRun run(communicator, {.overlap = {.stage = stage}});
    run.step(0);
    const train::Strategy& strategy = run.engine.strategy();
    for (const nn::Parameter& p : strategy.list().parameters) p.tensor.set_requires_grad(false);
    EXPECT_EQ(
        memory::snapshot()[memory::Category::kOptimizer] - before[memory::Category::kOptimizer],
        strategy.costs().at_rest.optimizer);
  });
}

// No UnshardedParameters: what an average of weights over steps reads, or Module::save.
TEST_P(StepEnd, ParametersMayBeReadAfterStepAtStagesThatKeepThemWhole) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      SCOPED_TRACE(stage);
      EngineConfig config{.overlap = {.stage = stage}};
      EngineRun run(communicator, config);
      config.overlap.defer_parameter_gather = true;
      EngineRun deferring(communicator, config);
      for (int s = 0; s < 3; ++s) {
        EXPECT_TRUE(run.step(s));
        std::vector<at::Tensor> read;
        for (const nn::Parameter& p : run.engine.strategy().list().parameters) {
          read.push_back(p.tensor.detach().clone());
        }
        EXPECT_TRUE(deferring.step(s));
        EXPECT_TRUE(same_bits(read, deferring.weights()));
      }
    }
  });
}

TEST_P(StepEnd, LearningRatesThatDifferAreRefusedWithBothValues) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const int last = communicator.size() - 1;
    const EngineConfig config{.overlap = {.stage = stage}};
    EngineRun run(communicator, config), clean(communicator, config);
    const auto step = [&](EngineRun& one, int s, double rate) {
      one.engine.backward(one.forward(s));
      // As a scheduler does, before step().
      one.engine.strategy().optimizer().set_learning_rate(rate);
      return one.engine.step();
    };
    EXPECT_TRUE(step(run, 0, 0.03));
    EXPECT_TRUE(step(clean, 0, 0.03));
    const std::vector<at::Tensor> before = run.weights();
    expect_error([&] { step(run, 1, run.rank == last ? 0.02 : 0.01); },
                 {fmt::format("ranks disagree about the optimizer's settings: rank 0 has "
                              "learning_rate 0.01 in group 0, rank {} has learning_rate "
                              "0.02 in group 0",
                              last)});
    EXPECT_TRUE(same_bits(run.weights(), before));
    EXPECT_TRUE(step(run, 1, 0.01));
    EXPECT_TRUE(step(clean, 1, 0.01));
    EXPECT_TRUE(same_bits(run.weights(), clean.weights()));
  });
}

TEST_P(StepEnd, TheTrainerComparesSettingsOfTorchOptimizersToo) {
  on_modes(
      GetParam(), {"ddp", "zero2", "zero3", "tensor_zero3", "engine3"},
      [](dist::Communicator& communicator, const std::string& mode) {
        Toy toy;
        const double momentum = communicator.rank() == 1 ? 0.8 : 0.9;
        const auto sgd =
            wrapped<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(momentum));
        const auto strategy = make_strategy(mode, {*toy.model, communicator, sgd, &toy.values});
        train::Trainer trainer(*strategy);
        expect_error([&] { trainer.step({toy.batch(communicator.rank(), 0)}); },
                     {"rank 0 has momentum 0.9 in group 0", "rank 1 has momentum 0.8 in group 0"});
      });
}

// Batches of this many samples, by micro-batch and rank.
std::int64_t samples_of(int micro_batch, int rank) { return 1 + (2 * micro_batch + 3 * rank) % 7; }

std::vector<at::Tensor> of_concatenated(int ranks, int micro_batches, int steps) {
  Toy toy;
  nn::initialize_parameters(*toy.model, toy.values);
  const std::vector<at::Tensor> parameters = parameters_of(*toy.model);
  const auto optimizer = optim::sgd({.learning_rate = 0.1})(parameters);
  for (int s = 0; s < steps; ++s) {
    std::vector<data::Batch> all;
    for (int m = s * micro_batches; m < (s + 1) * micro_batches; ++m) {
      for (int rank = 0; rank < ranks; ++rank) {
        all.push_back(toy.batch(rank, m, samples_of(m, rank)));
      }
    }
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
    toy.model->loss(concatenate(all)).backward();
    optimizer->step();
  }
  return parameters;
}

// `steps` steps of an engine and, on the same batches, of the trainer under ddp: the weights.
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> by_engine_and_trainer(
    dist::Communicator& communicator, int stage, int micro_batches, int steps,
    const optim::OptimizerFactory& optimizer,
    const std::function<std::int64_t(int micro_batch, int rank)>& samples) {
  EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = micro_batches},
                optimizer);
  Toy toy;
  const auto ddp = make_strategy("ddp", {*toy.model, communicator, optimizer, &toy.values});
  train::Trainer trainer(*ddp);
  for (int s = 0; s < steps; ++s) {
    std::vector<data::Batch> batches;
    for (int m = s * micro_batches; m < (s + 1) * micro_batches; ++m) {
      batches.push_back(toy.batch(run.rank, m, samples(m, run.rank)));
      EXPECT_EQ(run.step(batches.back()), m + 1 == (s + 1) * micro_batches);
    }
    trainer.step(batches);
  }
  return {run.weights(), whole_weights(*ddp)};
}

TEST_P(StepEnd, UnevenMicroBatchesWeighAsTheConcatenatedBatch) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    constexpr int kSteps = 3;
    for (const int micro_batches : {1, 2, 3}) {
      SCOPED_TRACE(micro_batches);
      const auto expected = of_concatenated(communicator.size(), micro_batches, kSteps);
      const auto [ours, trained] =
          by_engine_and_trainer(communicator, stage, micro_batches, kSteps,
                                optim::sgd({.learning_rate = 0.1}), samples_of);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(at::allclose(ours[i], expected[i], 1e-5, 1e-6)) << "parameter " << i;
        EXPECT_TRUE(at::allclose(trained[i], expected[i], 1e-5, 1e-6)) << "parameter " << i;
      }
      EXPECT_TRUE(micro_batches > 1 || same_bits(ours, trained));
    }
  });
}

// Three micro-batches, which no power of two divides: the same bits all the same.
TEST_P(StepEnd, EvenMicroBatchesHaveTheBitsOfTheTrainer) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto [ours, trained] =
        by_engine_and_trainer(communicator, stage, /*micro_batches=*/3,
                              /*steps=*/2, optim::adamw(), [](int, int) { return 4; });
    EXPECT_TRUE(same_bits(ours, trained));
  });
}

TEST_P(StepEnd, BatchesWithoutLossTermsCountAlikeOrAreEmpty) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const EngineConfig config{.overlap = {.stage = 2}, .accumulation_steps = 2};
    EngineRun stated(communicator, config), silent(communicator, config);
    // The toy's loss is divided by its terms, so that it is of one sample that may say none.
    const auto run = [](EngineRun& one, int m, std::int64_t terms) {
      data::Batch batch = one.toy.batch(one.rank, m, /*samples=*/1);
      batch.loss_terms = terms;
      one.engine.backward(one.engine.forward(batch));
    };
    for (int m = 0; m < 4; ++m) {
      run(stated, m, 1);
      run(silent, m, 0);
      EXPECT_EQ(stated.engine.step(), silent.engine.step());
    }
    EXPECT_TRUE(same_bits(stated.weights(), silent.weights()));
    run(silent, 4, 0);
    expect_error([&] { run(silent, 5, 1); }, {"micro-batch 2 of the step has loss terms"});
  });
}

}  // namespace
}  // namespace zero::testing

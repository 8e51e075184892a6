// How a step ends: gradients and losses that are not finite, settings that differ between ranks,
// what is left after an error, and what may be read after step().

#include <ATen/ops/allclose.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/base/error.hpp>
#include <zero/engine/engine.hpp>
#include <zero/nn/layers.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kStages[] = {"stage 0", "stage 1", "stage 2", "stage 3"};

class StepEnd : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StepEnd, ::testing::Values(2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << what << ", parameter " << i;
  }
}

// The gradient of its loss is NaN where an output is 0, as all are for inputs of 0.
struct RootModel : nn::Model {
  struct Block : nn::Unit {
    Block()
        : linear(register_module(
              "linear", std::make_shared<nn::Linear>(5, 5, nn::Initializer::normal(0.4)))) {}
    at::Tensor forward(const at::Tensor& x) {
      return run([&] { return linear->forward(x); }, {x});
    }
    std::shared_ptr<nn::Linear> linear;
  };
  RootModel() {
    for (const char* name : {"first", "second"}) {
      blocks.push_back(register_module(name, std::make_shared<Block>()));
    }
  }
  at::Tensor loss(const data::Batch& batch) override {
    return run([&] { return predict_here(batch).abs().sqrt().mean(); }, {});
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] { return predict_here(batch); }, {});
  }
  at::Tensor predict_here(const data::Batch& batch) {
    at::Tensor x = batch.inputs;
    for (const auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

data::Batch root_batch(int rank, int step, bool zeros = false) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * rank + step + 1));
  const at::Tensor inputs = at::randn({4, 5}, generator);
  return {.inputs = zeros ? at::zeros_like(inputs) : inputs,
          .targets = at::Tensor(),
          .lengths = at::Tensor(),
          .loss_terms = 4};
}

struct RootRun {
  RootRun(dist::Communicator& communicator, const EngineConfig& config)
      : rank(communicator.rank()),
        model(deferred()),
        engine(*model, communicator, optim::adamw(), config, &values) {}
  static std::shared_ptr<RootModel> deferred() {
    const nn::DeferredStorage storage;
    return std::make_shared<RootModel>();
  }
  bool step(int number, bool zeros = false) {
    engine.backward(engine.forward(root_batch(rank, number, zeros)));
    return engine.step();
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  nn::SeededValues values{5};
  std::shared_ptr<RootModel> model;
  Engine engine;
};

TEST_P(StepEnd, AGradientThatIsNotFiniteIsAnErrorThatNamesParameterAndRanks) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const double clip_norm : {0.0, 1.0}) {
        const EngineConfig config{.overlap = {.stage = stage}, .clip_norm = clip_norm};
        RootRun ill(communicator, config), well(communicator, config);
        ill.step(0);
        well.step(0);
        const std::vector<at::Tensor> before = ill.weights();
        EXPECT_THAT(error_of([&] { ill.step(1, communicator.rank() == 1); }),
                    HasSubstr("step 1: the gradient of 'first.linear.weight' is infinite or NaN on "
                              "rank 1; no rank has changed its weights"))
            << kStages[stage] << ", clip norm " << clip_norm;
        EXPECT_THAT(error_of([&] { ill.step(1, /*zeros=*/true); }),
                    HasSubstr(communicator.size() == 2 ? "on ranks 0, 1;" : "on ranks 0, 1, 2;"))
            << kStages[stage] << ", clip norm " << clip_norm;
        EXPECT_EQ(ill.engine.steps(), 1);
        EXPECT_EQ(ill.engine.skipped_steps(), 0);
        expect_same(ill.weights(), before, "after the error");
        for (int s = 1; s < 3; ++s) {
          EXPECT_TRUE(ill.step(s));
          EXPECT_TRUE(well.step(s));
        }
        expect_same(ill.weights(), well.weights(), kStages[stage]);
      }
    }
  });
}

TEST_P(StepEnd, AGradientThatIsNotFiniteMaySkipTheStep) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      EngineConfig config{.overlap = {.stage = stage}};
      RootRun well(communicator, config);
      config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
      RootRun ill(communicator, config);
      for (int s = 0; s < 3; ++s) {
        EXPECT_TRUE(ill.step(s));
        EXPECT_FALSE(ill.step(s, communicator.rank() == communicator.size() - 1));
        EXPECT_TRUE(well.step(s));
      }
      EXPECT_EQ(ill.engine.skipped_steps(), 3);
      EXPECT_EQ(ill.engine.steps(), 3);
      expect_same(ill.weights(), well.weights(), kStages[stage]);
    }
  });
}

// An infinity in the gradient of one parameter, on one rank, of every mode, reduced at the end or
// after each micro-batch.
TEST_P(StepEnd, TheTrainerTakesNoGradientThatIsNotFinite) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    train::Registry registry;
    train::register_all_chapters(registry);
    const int culprit = communicator.size() - 1;
    for (const std::string& mode : all_modes()) {
      for (const auto accumulation :
           {train::Accumulation::kLocal, train::Accumulation::kReduceEach}) {
        Toy toy;
        const auto strategy = registry.make(mode, {.model = *toy.model,
                                                   .communicator = communicator,
                                                   .optimizer = optim::adamw(),
                                                   .values = &toy.values,
                                                   .variant = "",
                                                   .accumulation = accumulation});
        const auto batches = [&](int s) {
          return std::vector{toy.batch(communicator.rank(), 2 * s),
                             toy.batch(communicator.rank(), 2 * s + 1)};
        };
        train::Trainer trainer(*strategy);
        trainer.step(batches(0));
        const std::vector<at::Tensor> before = whole_weights(*strategy);
        const std::size_t bad = 3;
        strategy->observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
          if (i != bad || communicator.rank() != culprit) return;
          gradient.detach().view({-1})[0].fill_(std::numeric_limits<double>::infinity());
        });
        const std::string named = accumulation == train::Accumulation::kLocal
                                      ? fmt::format("on rank {};", culprit)
                                      : "on rank";
        EXPECT_THAT(error_of([&] { trainer.step(batches(1)); }),
                    AllOf(HasSubstr(fmt::format("the gradient of '{}' is infinite or NaN",
                                                strategy->list().parameters[bad].name)),
                          HasSubstr(named)))
            << mode;
        for (std::size_t i = 0; i < strategy->list().size(); ++i) {
          const at::Tensor mine = strategy->piece(i).tensor;
          EXPECT_FALSE(mine.defined() && mine.grad().defined()) << mode << " kept a gradient";
        }
        expect_same(whole_weights(*strategy), before, mode);
        train::Trainer skips(*strategy,
                             {.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip});
        EXPECT_TRUE(skips.step(batches(1)).skipped) << mode;
        EXPECT_EQ(skips.skipped_steps(), 1);
        expect_same(whole_weights(*strategy), before, mode);
        strategy->observe_gradients({});
        EXPECT_FALSE(trainer.step(batches(1)).skipped) << mode;
      }
    }
  });
}

struct HalfToy : Toy {
  HalfToy() {
    const nn::DeferredStorage deferred;
    nn::MlpConfig config;
    config.dtype = at::kHalf;
    model = std::make_shared<nn::Mlp>(config);
  }
  data::Batch half(int rank, int step) const {
    data::Batch made = batch(rank, step);
    made.inputs = made.inputs.to(at::kHalf);
    made.targets = made.targets.to(at::kHalf);
    return made;
  }
};

TEST_P(StepEnd, AnOverflowAtALossScaleOfOneLeavesNothingBehind) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool wide : {false, true}) {
        HalfToy toy, other;
        const EngineConfig config{
            .overlap = {.stage = stage}, .reduce_in_float32 = wide, .loss_scale = {.initial = 1}};
        const auto optimizer = [] { return optim::with_master_weights(optim::adamw()); };
        Engine ill(*toy.model, communicator, optimizer(), config, &toy.values);
        Engine well(*other.model, communicator, optimizer(), config, &other.values);
        const auto step = [&](Engine& engine, HalfToy& of, int s) {
          engine.backward(engine.forward(of.half(communicator.rank(), s)));
          return engine.step();
        };
        // Too large for float16 as a sum, or on one rank alone.
        ill.strategy().observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
          if (i == 0 && communicator.rank() == 1) {
            gradient.detach().fill_(std::numeric_limits<double>::infinity());
          }
        });
        EXPECT_THAT(error_of([&] { step(ill, toy, 0); }),
                    AllOf(HasSubstr("infinite or NaN on rank 1 at"), HasSubstr("loss scale of 1")))
            << kStages[stage] << (wide ? ", wide" : "");
        ill.strategy().observe_gradients({});
        for (int s = 0; s < 3; ++s) {
          EXPECT_TRUE(step(ill, toy, s)) << kStages[stage];
          EXPECT_TRUE(step(well, other, s));
        }
        EXPECT_EQ(ill.steps(), 3);
        expect_same(whole_weights(ill.strategy()), whole_weights(well.strategy()), kStages[stage]);
      }
    }
  });
}

TEST_P(StepEnd, LossesOfAStepThatWasGivenUpDoNotCount) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy;
      Engine engine(*toy.model, communicator, optim::adamw(),
                    {.overlap = {.stage = stage}, .accumulation_steps = 2}, &toy.values);
      data::Batch bad = toy.batch(communicator.rank(), 0);
      bad.inputs[0][0] = std::nanf("");
      engine.backward(engine.forward(bad));
      engine.give_up_step();
      for (int s = 0; s < 2; ++s) {
        engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
      }
      EXPECT_EQ(error_of([&] { EXPECT_TRUE(engine.step()); }), "") << kStages[stage];
      EXPECT_EQ(engine.steps(), 1);
    }
  });
}

// No UnshardedParameters: what an average of weights over steps reads, or Module::save.
TEST_P(StepEnd, ParametersMayBeReadAfterStepAtStagesThatKeepThemWhole) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      Toy toy, other;
      EngineConfig config{.overlap = {.stage = stage}};
      Engine engine(*toy.model, communicator, optim::adamw(), config, &toy.values);
      config.overlap.defer_parameter_gather = true;
      Engine deferring(*other.model, communicator, optim::adamw(), config, &other.values);
      for (int s = 0; s < 3; ++s) {
        engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
        EXPECT_TRUE(engine.step());
        std::vector<at::Tensor> read;
        for (const nn::Parameter& p : engine.strategy().list().parameters) {
          read.push_back(p.tensor.detach().clone());
        }
        deferring.backward(deferring.forward(other.batch(communicator.rank(), s)));
        EXPECT_TRUE(deferring.step());
        expect_same(read, whole_weights(deferring.strategy()), kStages[stage]);
      }
    }
  });
}

TEST_P(StepEnd, LearningRatesThatDifferAreRefusedWithBothValues) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const bool last = communicator.rank() == communicator.size() - 1;
    const std::string ranks = fmt::format(
        "ranks disagree about the optimizer's settings: rank 0 has learning_rate 0.01 in group 0, "
        "rank {} has learning_rate 0.02 in group 0",
        communicator.size() - 1);
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy, other;
      const EngineConfig config{.overlap = {.stage = stage}};
      Engine engine(*toy.model, communicator, optim::adamw(), config, &toy.values);
      Engine clean(*other.model, communicator, optim::adamw(), config, &other.values);
      const auto step = [&](Engine& e, Toy& t, int s, double rate) {
        e.backward(e.forward(t.batch(communicator.rank(), s)));
        e.strategy().optimizer().set_learning_rate(rate);  // as a scheduler does, before step()
        return e.step();
      };
      EXPECT_TRUE(step(engine, toy, 0, 0.03));
      EXPECT_TRUE(step(clean, other, 0, 0.03));
      const std::vector<at::Tensor> before = whole_weights(engine.strategy());
      EXPECT_THAT(error_of([&] { step(engine, toy, 1, last ? 0.02 : 0.01); }), HasSubstr(ranks));
      expect_same(whole_weights(engine.strategy()), before, kStages[stage]);
      EXPECT_TRUE(step(engine, toy, 1, 0.01));
      EXPECT_TRUE(step(clean, other, 1, 0.01));
      expect_same(whole_weights(engine.strategy()), whole_weights(clean.strategy()),
                  kStages[stage]);
    }
  });
}

TEST_P(StepEnd, TheTrainerComparesSettingsOfTorchOptimizersToo) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    train::Registry registry;
    train::register_all_chapters(registry);
    for (const char* mode : {"ddp", "zero2", "zero3", "tensor_zero3", "engine3"}) {
      Toy toy;
      const double momentum = communicator.rank() == 1 ? 0.8 : 0.9;
      const auto sgd = [momentum](const std::vector<at::Tensor>& parameters) {
        return optim::wrap(std::make_unique<torch::optim::SGD>(
            parameters, torch::optim::SGDOptions(0.1).momentum(momentum)));
      };
      const auto strategy = registry.make(mode, {*toy.model, communicator, sgd, &toy.values, ""});
      train::Trainer trainer(*strategy);
      EXPECT_THAT(error_of([&] { trainer.step({toy.batch(communicator.rank(), 0)}); }),
                  AllOf(HasSubstr("rank 0 has momentum 0.9 in group 0"),
                        HasSubstr("rank 1 has momentum 0.8 in group 0")))
          << mode;
    }
  });
}

// Batches of this many samples, by micro-batch and rank.
std::int64_t samples_of(int micro_batch, int rank) { return 1 + (2 * micro_batch + 3 * rank) % 7; }

std::vector<at::Tensor> of_concatenated(int ranks, int micro_batches, int steps) {
  Toy toy;
  nn::initialize_parameters(*toy.model, toy.values);
  std::vector<at::Tensor> parameters;
  for (const nn::Parameter& p : nn::list_parameters(*toy.model).parameters) {
    parameters.push_back(p.tensor);
  }
  const auto optimizer = optim::sgd({.learning_rate = 0.1})(parameters);
  for (int s = 0; s < steps; ++s) {
    std::vector<at::Tensor> inputs, targets;
    data::Batch all;
    for (int m = s * micro_batches; m < (s + 1) * micro_batches; ++m) {
      for (int rank = 0; rank < ranks; ++rank) {
        const data::Batch one = toy.batch(rank, m, samples_of(m, rank));
        inputs.push_back(one.inputs);
        targets.push_back(one.targets);
        all.loss_terms += one.loss_terms;
      }
    }
    all.inputs = at::cat(inputs);
    all.targets = at::cat(targets);
    for (at::Tensor& p : parameters) p.mutable_grad().reset();
    toy.model->loss(all).backward();
    optimizer->step();
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& p : parameters) weights.push_back(p.detach().clone());
  return weights;
}

TEST_P(StepEnd, UnevenMicroBatchesWeighAsTheConcatenatedBatch) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    constexpr int kSteps = 3;
    for (const int micro_batches : {1, 2, 3}) {
      const std::vector<at::Tensor> expected =
          of_concatenated(communicator.size(), micro_batches, kSteps);
      for (const int stage : {0, 1, 2, 3}) {
        Toy toy, other;
        Engine engine(*toy.model, communicator, optim::sgd({.learning_rate = 0.1}),
                      {.overlap = {.stage = stage}, .accumulation_steps = micro_batches},
                      &toy.values);
        train::Registry registry;
        train::register_all_chapters(registry);
        const auto ddp = registry.make(
            "ddp",
            {*other.model, communicator, optim::sgd({.learning_rate = 0.1}), &other.values, ""});
        train::Trainer trainer(*ddp);
        for (int s = 0; s < kSteps; ++s) {
          std::vector<data::Batch> batches;
          for (int m = s * micro_batches; m < (s + 1) * micro_batches; ++m) {
            batches.push_back(
                toy.batch(communicator.rank(), m, samples_of(m, communicator.rank())));
            engine.backward(engine.forward(batches.back()));
          }
          EXPECT_TRUE(engine.step());
          trainer.step(batches);
        }
        const std::vector<at::Tensor> ours = whole_weights(engine.strategy());
        const std::vector<at::Tensor> trained = whole_weights(*ddp);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(at::allclose(ours[i], expected[i], 1e-5, 1e-6))
              << kStages[stage] << ", " << micro_batches << ", parameter " << i << ": "
              << (ours[i] - expected[i]).abs().max().item<double>();
          EXPECT_TRUE(at::allclose(trained[i], expected[i], 1e-5, 1e-6));
          EXPECT_TRUE(micro_batches > 1 || at::equal(ours[i], trained[i])) << kStages[stage];
        }
      }
    }
  });
}

// Three micro-batches, which no power of two divides: the same bits all the same.
TEST_P(StepEnd, EvenMicroBatchesHaveTheBitsOfTheTrainer) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy, other;
      Engine engine(*toy.model, communicator, optim::adamw(),
                    {.overlap = {.stage = stage}, .accumulation_steps = 3}, &toy.values);
      train::Registry registry;
      train::register_all_chapters(registry);
      const auto ddp =
          registry.make("ddp", {*other.model, communicator, optim::adamw(), &other.values, ""});
      train::Trainer trainer(*ddp);
      for (int s = 0; s < 2; ++s) {
        std::vector<data::Batch> batches;
        for (int m = 0; m < 3; ++m) {
          batches.push_back(toy.batch(communicator.rank(), 3 * s + m));
          engine.backward(engine.forward(batches.back()));
        }
        EXPECT_TRUE(engine.step());
        trainer.step(batches);
      }
      expect_same(whole_weights(engine.strategy()), whole_weights(*ddp), kStages[stage]);
    }
  });
}

TEST_P(StepEnd, BatchesWithoutLossTermsCountAlikeOrAreEmpty) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const EngineConfig config{.overlap = {.stage = 2}, .accumulation_steps = 2};
    Toy stated_toy, silent_toy;
    Engine stated(*stated_toy.model, communicator, optim::adamw(), config, &stated_toy.values);
    Engine silent(*silent_toy.model, communicator, optim::adamw(), config, &silent_toy.values);
    // The toy's loss is divided by its terms, so that it is of one sample that may say none.
    const auto run = [&](Engine& engine, Toy& toy, int m, std::int64_t terms) {
      data::Batch batch = toy.batch(communicator.rank(), m, /*samples=*/1);
      batch.loss_terms = terms;
      engine.backward(engine.forward(batch));
    };
    for (int m = 0; m < 4; ++m) {
      run(stated, stated_toy, m, 1);
      run(silent, silent_toy, m, 0);
      EXPECT_EQ(stated.step(), silent.step());
    }
    expect_same(whole_weights(stated.strategy()), whole_weights(silent.strategy()), "no terms");
    run(silent, silent_toy, 4, 0);
    EXPECT_THAT(error_of([&] { run(silent, silent_toy, 5, 1); }),
                HasSubstr("micro-batch 2 of the step has loss terms"));
  });
}

}  // namespace
}  // namespace zero::testing

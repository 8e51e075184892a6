#include <gtest/gtest.h>

#include <cmath>

#include <05_prefetch_overlap/test_runs.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/toy.hpp>
#include <zero/base/error.hpp>
#include <zero/engine/engine.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero {
namespace {

using testing::expect_equal;
using testing::on_ranks;
using testing::Toy;
using testing::trained;
using testing::whole_weights;

TEST(Engine, TrainsAsTheTrainerDoes) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy;
      Engine engine(*toy.model, communicator, optim::adamw(), {.overlap = {.stage = stage}},
                    &toy.values);
      for (int s = 0; s < 3; ++s) {
        engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
        EXPECT_TRUE(engine.step());
      }
      EXPECT_EQ(engine.steps(), 3);
      const std::vector<at::Tensor> expected = trained(communicator, {.stage = stage}, 3);
      expect_equal(whole_weights(engine.strategy()), expected, "stage " + std::to_string(stage));
    }
  });
}

TEST(Engine, UpdatesAfterTheLastMicroBatchAndClips) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Engine engine(*toy.model, communicator, optim::adamw(),
                  {.overlap = {.stage = 2}, .accumulation_steps = 3, .clip_norm = 1e-3},
                  &toy.values);
    for (int s = 0; s < 6; ++s) {
      engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
      EXPECT_EQ(engine.step(), s % 3 == 2);
    }
    EXPECT_EQ(engine.steps(), 2);
    EXPECT_GT(engine.gradient_norm(), 1e-3F);
  });
}

TEST(Engine, GoesOnFromItsCheckpointAtAnotherStage) {
  const testing::TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    const auto run = [&](Engine& engine, Toy& toy, int until) {
      while (engine.steps() < until) {
        const auto s = static_cast<int>(engine.steps());
        engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
        engine.step();
      }
    };
    Toy first, second;
    Engine saves(*first.model, communicator, optim::adamw(), {.overlap = {.stage = 3}},
                 &first.values);
    EXPECT_FALSE(saves.load(folder.path()));
    run(saves, first, 2);
    saves.save(folder.path());
    run(saves, first, 5);
    Engine loads(*second.model, communicator, optim::adamw(), {.overlap = {.stage = 1}},
                 &second.values);
    EXPECT_TRUE(loads.load(folder.path()));
    EXPECT_EQ(loads.steps(), 2);
    run(loads, second, 5);
    expect_equal(whole_weights(saves.strategy()), whole_weights(loads.strategy()), "gone on");
    loads.backward(loads.forward(second.batch(communicator.rank(), 5)));
    EXPECT_THROW(loads.save(folder.path()), Error);  // in the middle of a step
  });
}

TEST(Engine, BeginsAStepAnewThatWasGivenUp) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy, other;
    const EngineConfig config{.overlap = {.stage = 3}, .accumulation_steps = 2};
    Engine engine(*toy.model, communicator, optim::adamw(), config, &toy.values);
    Engine undisturbed(*other.model, communicator, optim::adamw(), config, &other.values);
    const auto micro = [&](Engine& e, Toy& t, int s) {
      e.backward(e.forward(t.batch(communicator.rank(), s)));
      return e.step();
    };
    micro(engine, toy, 7);
    engine.strategy().observe_gradients([](std::size_t, const at::Tensor&) { throw Error("no"); });
    EXPECT_THROW(micro(engine, toy, 8), Error);
    engine.strategy().observe_gradients({});
    engine.give_up_step();
    for (int s = 0; s < 4; ++s) {
      EXPECT_EQ(micro(engine, toy, s), s % 2 == 1);
      EXPECT_EQ(micro(undisturbed, other, s), s % 2 == 1);
    }
    expect_equal(whole_weights(engine.strategy()), whole_weights(undisturbed.strategy()), "anew");
  });
}

TEST(Engine, NobodyUpdatesWhereOneLossIsNotFinite) {
  on_ranks(3, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy, other;
      const EngineConfig config{.overlap = {.stage = stage}, .accumulation_steps = 2};
      Engine engine(*toy.model, communicator, optim::adamw(), config, &toy.values);
      Engine undisturbed(*other.model, communicator, optim::adamw(), config, &other.values);
      const auto micro = [&](Engine& e, Toy& t, int s, bool bad) {
        data::Batch batch = t.batch(communicator.rank(), s);
        if (bad) batch.inputs[0][0] = std::nanf("");
        e.backward(e.forward(batch));
        return e.step();
      };
      for (int s = 0; s < 2; ++s) {
        micro(engine, toy, s, false);
        micro(undisturbed, other, s, false);
      }
      micro(engine, toy, 2, communicator.rank() == 1);  // the first of its step
      try {
        micro(engine, toy, 3, false);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()),
                  "step 1: the loss is infinite or NaN on rank 1; no rank has changed its weights");
      }
      EXPECT_EQ(engine.steps(), 1);
      for (int s = 2; s < 4; ++s) {
        micro(engine, toy, s, false);
        micro(undisturbed, other, s, false);
      }
      expect_equal(whole_weights(engine.strategy()), whole_weights(undisturbed.strategy()),
                   "stage " + std::to_string(stage));
    }
  });
}

TEST(Engine, SavesNoWeightsThatAreNotFinite) {
  const testing::TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    Toy toy, other;
    const EngineConfig config{.overlap = {.stage = 3}};
    Engine engine(*toy.model, communicator, optim::adamw(), config, &toy.values);
    engine.backward(engine.forward(toy.batch(communicator.rank(), 0)));
    engine.step();
    engine.save(folder.path());
    engine.backward(engine.forward(toy.batch(communicator.rank(), 1)));
    engine.step();
    for (std::size_t i = 0; i < engine.strategy().list().size(); ++i) {
      const at::Tensor held = engine.strategy().local_shard(i).tensor;
      if (communicator.rank() == 1 && held.defined()) at::Tensor(held).fill_(std::nanf(""));
    }
    EXPECT_THROW(engine.save(folder.path()), Error);
    Engine loads(*other.model, communicator, optim::adamw(), config, &other.values);
    EXPECT_TRUE(loads.load(folder.path()));
    EXPECT_EQ(loads.steps(), 1);
  });
}

// In float16, with a first scale at which gradients overflow: the trainer is the measure, and a run
// that was stopped goes on with the scale that it had.
struct Half : Toy {
  Half() {
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

TEST(Engine, ReducesInFloat32IfAskedTo) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      std::vector<std::int64_t> sent;
      std::vector<std::vector<at::Tensor>> weights;
      for (const bool wide : {false, true}) {
        Half toy;
        Engine engine(*toy.model, communicator, optim::with_master_weights(optim::adamw()),
                      {.overlap = {.stage = stage}, .reduce_in_float32 = wide}, &toy.values);
        const dist::Traffic before = communicator.traffic();
        engine.backward(engine.forward(toy.half(communicator.rank(), 0)));
        engine.step();
        sent.push_back(communicator.traffic().since(before).bytes(dist::Purpose::kGradient));
        weights.push_back(whole_weights(engine.strategy()));
      }
      EXPECT_EQ(sent[1], 2 * sent[0]);
      expect_equal(weights[1], weights[0], "weights");
    }
  });
}

TEST(Engine, ScalesTheLossAsTheTrainerDoes) {
  const testing::TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    const train::LossScaleOptions scale{.initial = 1 << 24, .growth_steps = 3};
    const auto optimizer = [] { return optim::with_master_weights(optim::adamw()); };
    constexpr int kSteps = 20;
    Half plain;
    Overlap ddp({*plain.model, communicator, optimizer(), &plain.values, ""}, {.stage = 0});
    train::Trainer trainer(ddp, {.loss_scale = scale});
    int skipped = 0;
    for (int s = 0; s < kSteps; ++s) {
      skipped += trainer.step({plain.half(communicator.rank(), s)}).skipped ? 1 : 0;
    }
    ASSERT_GT(skipped, 1);
    ASSERT_LT(skipped, kSteps - 1);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      Half first, second;
      const EngineConfig config{.overlap = {.stage = stage}, .loss_scale = scale};
      Engine begins(*first.model, communicator, optimizer(), config, &first.values);
      Engine ends(*second.model, communicator, optimizer(), config, &second.values);
      const auto run = [&](Engine& engine, Half& toy, int from, int to) {
        for (int s = from; s < to; ++s) {
          engine.backward(engine.forward(toy.half(communicator.rank(), s)));
          engine.step();
        }
      };
      run(begins, first, 0, kSteps / 2);
      begins.save(folder.path());
      ASSERT_TRUE(ends.load(folder.path()));
      EXPECT_EQ(ends.loss_scale(), begins.loss_scale());
      run(ends, second, kSteps / 2, kSteps);
      EXPECT_EQ(begins.skipped_steps() + ends.skipped_steps(), skipped);
      EXPECT_EQ(ends.steps(), kSteps - skipped);
      EXPECT_EQ(ends.loss_scale(), trainer.loss_scale()->value());
      expect_equal(whole_weights(ends.strategy()), whole_weights(ddp), "weights");
    }
  });
}

TEST(Engine, RefusesCallsInTheWrongOrder) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Toy other;
    EngineConfig config;
    config.accumulation_steps = 0;
    EXPECT_THROW(Engine(*other.model, communicator, optim::adamw(), config, &other.values), Error);
    Engine engine(*toy.model, communicator, optim::adamw(), {}, &toy.values);
    EXPECT_THROW(engine.step(), Error);
    engine.backward(engine.forward(toy.batch(communicator.rank(), 0)));
    const at::Tensor again = engine.forward(toy.batch(communicator.rank(), 1));
    EXPECT_THROW(engine.backward(again), Error);
    EXPECT_TRUE(engine.step());
  });
}

}  // namespace
}  // namespace zero

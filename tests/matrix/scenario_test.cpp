// What happens to models and loops in practice, under every strategy: the bits must be those of
// plain DDP, whatever is frozen, skipped, used twice, changed from outside or evaluated in between.

#include <c10/core/GradMode.h>

#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/base/error.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(Scenario, 2, 3);

// Chapters 04 to 07, whose shards are parts of tensors.
bool splits_tensors(const std::string& mode) {
  return mode.starts_with("tensor_") || mode.starts_with("engine") || mode.starts_with("hsdp") ||
         mode.starts_with("hpz");
}

void set_trainable(Session& session, const std::string& name, bool trainable) {
  int found = 0;
  for (const nn::Parameter& p : session.strategy().list().parameters) {
    if (p.name.find(name) == std::string::npos) continue;
    p.tensor.requires_grad_(trainable);
    ++found;
  }
  ASSERT_GT(found, 0) << name;
}

void three_steps(Session& session) {
  for (int s = 0; s < 3; ++s) session.step(s);
}

TEST_P(Scenario, PartsAreFrozenAndThawedBetweenSteps) {
  expect_all_modes_like_ddp(GetParam(), with_parts("ansal"), [](Session& session) {
    session.step(0);
    const std::vector<at::Tensor> before = session.weights();
    set_trainable(session, "parts.0.", false);
    set_trainable(session, "parts.1.gain", false);
    set_trainable(session, "parts.4.norm", false);
    session.step(1);
    const std::vector<at::Tensor> between = session.weights();
    set_trainable(session, "parts.0.", true);
    session.step(2);
    const std::vector<at::Tensor> after = session.weights();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::string& name = session.strategy().list().parameters[i].name;
      const bool stays = name == "parts.1.gain" || name.starts_with("parts.4.norm");
      EXPECT_EQ(at::equal(before[i], between[i]), stays || name.starts_with("parts.0.")) << name;
      EXPECT_EQ(at::equal(between[i], after[i]), stays) << name;
    }
  });
}

// Frozen when the strategy was made. Whole parameters can be trained all the same, as soon as they
// are thawed; chapter 04, which has no gradient buffer for them, says so.
TEST_P(Scenario, WhatWasFrozenAtTheStartIsThawed) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto train = [&](const std::string& mode) {
      Session session(communicator, mode, with_parts("anfa"));
      session.step(0);
      const std::vector<at::Tensor> before = session.weights();
      set_trainable(session, "parts.2.weight", true);
      session.step(1);
      std::vector<at::Tensor> after = session.weights();
      for (std::size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(at::equal(before[i], after[i]));
      return after;
    };
    const std::vector<at::Tensor> reference = train("ddp");
    for (const std::string& mode : all_modes()) {
      if (splits_tensors(mode)) {
        expect_error([&] { train(mode); }, {"'parts.2.weight' was frozen"});
      } else {
        EXPECT_TRUE(same_bits(train(mode), reference)) << mode;
      }
    }
  });
}

TEST_P(Scenario, ALargeFirstParameterIsFrozen) {
  SessionOptions options = with_parts("aa");
  options.model.inputs = 300;
  options.model.tied = false;
  expect_all_modes_like_ddp(GetParam(), options, [](Session& session) {
    set_trainable(session, "first", false);
    for (int s = 0; s < 3; ++s) session.step(s);
  });
}

TEST_P(Scenario, TwoForwardsBeforeOneBackward) {
  expect_all_modes_like_ddp(GetParam(), with_parts("antfl"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    for (int s = 0; s < 2; ++s) {
      strategy.zero_grad();
      const at::Tensor one = strategy.forward(session.batch(2 * s));
      const at::Tensor other = strategy.forward(session.batch(2 * s + 1));
      strategy.backward(one + 0.5 * other);
      finish_step(strategy);
    }
  });
}

// A rank that leaves a parameter out must not reduce after the next gather what others reduce
// before it: in a unit by itself, in one around another, in one with two outputs, where all
// parameters of a unit are left out, and beside units that are used twice or whose input is read by
// others as well.
TEST_P(Scenario, SomeRanksLeaveOutAParameterOfAnInnerUnit) {
  for (const char* parts : {"aoa", "aohta", "hnh", "kho", "aii", "abod"}) {
    SCOPED_TRACE(parts);
    expect_all_modes_like_ddp(GetParam(), with_parts(parts), [](Session& session) {
      for (int s = 0; s < 4; ++s) {
        data::Batch batch = session.batch(s);
        at::Tensor first = batch.targets.narrow(0, 0, 1);
        first.abs_();
        if ((session.communicator().rank() + s) % 2 != 0) first.neg_();
        session.trainer().step({batch});
      }
    });
  }
}

// What was gathered for them must not be taken for the values after the update.
TEST_P(Scenario, ForwardsThatNoBackwardFollowsComeBeforeTheUpdate) {
  expect_all_modes_like_ddp(GetParam(), with_parts("ansa"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    for (int s = 0; s < 4; ++s) {
      strategy.zero_grad();
      strategy.backward(strategy.forward(session.batch(s)));
      strategy.finish_backward();
      session.model().stop_after(s % 2 == 0 ? 1 : 1000);  // also one that runs less
      if (s < 2) {
        strategy.forward(session.batch(10 + s));
      } else {
        session.trainer().evaluate({session.batch(10 + s)});
      }
      session.model().stop_after(1000);
      strategy.optimizer_step();
      strategy.sync_parameters();
    }
  });
}

// The output of one unit is that of another, a unit follows itself, and units lie within units.
TEST_P(Scenario, UnitsHandOnWhatOthersGave) {
  for (const char* parts : {"add", "attd", "nnan"}) {
    SCOPED_TRACE(parts);
    expect_all_modes_like_ddp(GetParam(), with_parts(parts), three_steps);
  }
}

TEST_P(Scenario, ABackwardPassIsGivenUpAndTheStepBegunAnew) {
  expect_all_modes_like_ddp(GetParam(), with_parts("anta"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    for (int s = 0; s < 3; ++s) {
      strategy.passes().observe_gradients([&](std::size_t index, const at::Tensor&) {
        if (strategy.list().parameters[index].name == "parts.1.gain") throw Error("enough");
      });
      strategy.zero_grad();
      const at::Tensor loss = strategy.forward(session.batch(s));
      EXPECT_THROW(strategy.backward(loss), Error);
      strategy.passes().observe_gradients({});
      session.step(s);
    }
  });
}

// Where it throws, ranks that leave out the shift have not reduced what others have. Afterwards no
// rank uses it, so that it must not be updated.
TEST_P(Scenario, ABackwardPassIsGivenUpWhereSomeRanksLeaveOutAParameter) {
  expect_all_modes_like_ddp(GetParam(), with_parts("aoa"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    const auto batch_with = [&](int number, bool uses_shift) {
      data::Batch batch = session.batch(number);
      at::Tensor first = batch.targets.narrow(0, 0, 1);
      first.abs_();
      if (!uses_shift) first.neg_();
      return batch;
    };
    session.trainer().step({batch_with(0, true)});
    for (int s = 1; s < 4; ++s) {
      strategy.passes().observe_gradients([&](std::size_t index, const at::Tensor&) {
        if (strategy.list().parameters[index].name == "parts.0.weight") throw Error("enough");
      });
      const bool uses_shift = (session.communicator().rank() + s) % 2 == 0;
      const at::Tensor loss = strategy.forward(batch_with(s, uses_shift));
      EXPECT_THROW(strategy.backward(loss), Error);
      strategy.passes().observe_gradients({});
      strategy.zero_grad();
      session.trainer().step({batch_with(s, false)});
    }
  });
}

// Not a copy of the micro-batches of Parity: the losses are not weighted, and nothing is agreed on.
TEST_P(Scenario, TwoBackwardsAddUpWhereOnlyTheLastIsReduced) {
  expect_all_modes_like_ddp(GetParam(), with_parts("an"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    for (int s = 0; s < 2; ++s) {
      strategy.zero_grad();
      for (const bool last : {false, true}) {
        strategy.set_requires_gradient_sync(last);
        strategy.backward(strategy.forward(session.batch(2 * s + (last ? 1 : 0))));
        strategy.finish_backward();
      }
      strategy.optimizer_step();
      strategy.sync_parameters();
    }
  });
}

TEST_P(Scenario, ModelsThatAreOnlyARoot) {
  for (const bool tied : {true, false}) {
    SessionOptions options = with_parts("");
    options.model.tied = tied;
    expect_all_modes_like_ddp(GetParam(), options, three_steps);
  }
}

// A loss that does not need the last units, in one step on all ranks; then it needs them again.
TEST_P(Scenario, TheLossLeavesTheLastUnitsOut) {
  expect_all_modes_like_ddp(GetParam(), with_parts("lanfl"), [](Session& session) {
    session.step(0);
    session.model().stop_after(1);
    const std::vector<at::Tensor> before = session.weights();
    session.step(1);
    const std::vector<at::Tensor> after = session.weights();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::string& name = session.strategy().list().parameters[i].name;
      const bool left_out = name.starts_with("parts.") && !name.starts_with("parts.0");
      // Untouched means no weight decay either.
      EXPECT_EQ(at::equal(before[i], after[i]), left_out) << name;
    }
    session.model().stop_after(1000);
    session.step(2);
  });
}

// One unit called from outside, as one would to look at activations.
TEST_P(Scenario, AnInnerUnitIsRunByItself) {
  const SessionOptions options = with_parts("fna");
  on_all_modes(GetParam(), [&](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, options);
    SingleProcessReference alone(options);
    const c10::NoGradGuard no_grad;
    const at::Tensor x = at::ones({3, options.model.width});
    for (std::size_t part = 0; part < 3; ++part) {
      EXPECT_TRUE(at::equal(session.model().run_part(part, x), alone.model().run_part(part, x)))
          << "part " << part;
    }
  });
}

// Weights set from outside (a checkpoint, another initialisation) are trained on, where a rank's
// own parameters are the model's: what is gathered is for reading only.
TEST_P(Scenario, WeightsChangedAfterTheStrategyWasMade) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto train = [&](const std::string& mode) {
      Session session(communicator, mode, with_parts("anf"));
      session.step(0);
      const nn::ParameterList& list = session.strategy().list();
      for (std::size_t i = 0; i < list.size(); ++i) {
        const at::Tensor mine = session.strategy().local_shard(i).tensor;
        if (mine.defined()) memory::raw(mine).fill_(0.01 * static_cast<double>(i + 1));
      }
      for (const at::Tensor& weight : session.weights()) {
        EXPECT_EQ(weight.min().item<float>(), weight.max().item<float>());
      }
      session.step(1);
      return session.weights();
    };
    const std::vector<at::Tensor> reference = train("ddp");
    for (const std::string& mode : all_modes()) {
      if (splits_tensors(mode)) continue;  // there the owned elements lie elsewhere
      EXPECT_TRUE(same_bits(train(mode), reference)) << mode;
    }
  });
}

TEST_P(Scenario, TheLearningRateChangesBetweenSteps) {
  expect_all_modes_like_ddp(GetParam(), with_parts("ans"), [](Session& session) {
    for (int s = 0; s < 4; ++s) {
      session.strategy().optimizer().set_learning_rate(0.01 / (s + 1));
      session.step(s);
    }
  });
}

// Two groups with settings of their own, by which the optimizer is narrowed as by one.
TEST_P(Scenario, GroupsOfParametersKeepTheirSettings) {
  SessionOptions options = with_parts("ans");
  options.optimizer = [](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> matrices, others;
    for (const at::Tensor& p : parameters) (p.dim() == 2 ? matrices : others).push_back(p);
    return optim::make_adamw(
        {{matrices,
          {.learning_rate = 0.02,
           .beta1 = 0.8,
           .beta2 = 0.95,
           .epsilon = 1e-3,
           .weight_decay = 0.3}},
         {others, {.learning_rate = 0.001, .beta1 = 0.5, .weight_decay = 0.0}}});
  };
  expect_all_modes_like_ddp(GetParam(), options, three_steps);
}

// One step of `modes` on these ranks, like that of the first of them.
void expect_one_step_alike(int ranks, const SessionOptions& options,
                           const std::vector<std::string>& modes, std::int64_t samples) {
  on_ranks(ranks, [&](dist::Communicator& communicator) {
    std::vector<at::Tensor> reference;
    for (const std::string& mode : modes) {
      Session session(communicator, mode, options);
      session.trainer().step({session.batch(0, samples)});
      if (reference.empty()) reference = session.weights();
      EXPECT_TRUE(same_bits(session.weights(), reference)) << mode;
    }
  });
}

// More parameters than collectives can be in flight at once within a host.
TEST_P(Scenario, VeryManySmallParameters) {
  SessionOptions options = with_parts(std::string(90, 's'));  // 1080 and the root's
  options.model.width = 3;
  expect_one_step_alike(GetParam(), options, all_modes(), /*samples=*/4);
}

// Larger than the scratch in which contributions are added (32 MiB), beside one of 1 element.
TEST_P(Scenario, OneParameterIsLargerThanAnyBuffer) {
  SessionOptions options = with_parts("");
  options.model.width = 1;
  options.model.inputs = (std::int64_t{10} << 20) + 3;  // 40 MiB
  expect_one_step_alike(GetParam(), options,
                        {"ddp", "ddp:flat", "zero2", "zero3", "tensor_zero1", "tensor_zero3"},
                        /*samples=*/1);
}

}  // namespace
}  // namespace zero::testing

// What happens to models and loops in practice, under every strategy, where it is more than a loop
// of tests/fuzz can say: the bits must be those of plain DDP.

#include <c10/core/GradMode.h>

#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/memory/storage.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(Scenario, 2, 3);

// Chapters 04 to 07, whose shards are parts of tensors.
bool splits_tensors(const std::string& mode) {
  return mode.starts_with("tensor_") || mode.starts_with("engine") || mode.starts_with("hsdp") ||
         mode.starts_with("hpz");
}

// Frozen when the strategy was made. Whole parameters can be trained all the same, as soon as they
// are thawed; chapter 04, which has no gradient buffer for them, says so.
TEST_P(Scenario, WhatWasFrozenAtTheStartIsThawed) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto train = [&](const std::string& mode) {
      Session session(communicator, mode, with_parts("anfa"));
      session.step(0);
      const std::vector<at::Tensor> before = session.weights();
      for (const nn::Parameter& p : session.strategy().list().parameters) {
        if (p.name == "parts.2.weight") p.tensor.requires_grad_(true);
      }
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
    session.strategy().list().parameters.front().tensor.requires_grad_(false);  // "first"
    for (int s = 0; s < 3; ++s) session.step(s);
  });
}

// What was gathered for them must not be taken for the values after the update.
TEST_P(Scenario, ForwardsThatNoBackwardFollowsComeBeforeTheUpdate) {
  expect_all_modes_like_ddp(GetParam(), with_parts("ansa"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    for (int s = 0; s < 4; ++s) {
      strategy.zero_grad();
      strategy.backward(forward_batch(strategy, session.batch(s)));
      strategy.finish_backward();
      session.model().stop_after(s % 2 == 0 ? 1 : 1000);  // also one that runs less
      if (s < 2) {
        forward_batch(strategy, session.batch(10 + s));
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
    expect_all_modes_like_ddp(GetParam(), with_parts(parts), [](Session& session) {
      for (int s = 0; s < 3; ++s) session.step(s);
    });
  }
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
        const at::Tensor mine = session.strategy().placement(i).kept.tensor;
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

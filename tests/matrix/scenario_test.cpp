// What happens to models and loops in practice, under every strategy, where it is more than a loop
// of tests/fuzz can say: the bits must be those of plain DDP.

#include <c10/core/GradMode.h>

#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
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

// Larger than the scratch in which contributions are added (32 MiB), beside one of 1 element.
TEST_P(Scenario, OneParameterIsLargerThanAnyBuffer) {
  SessionOptions options = with_parts("");
  options.model.width = 1;
  options.model.inputs = (std::int64_t{10} << 20) + 3;  // 40 MiB
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    std::vector<at::Tensor> reference;
    for (const std::string mode :
         {"ddp", "ddp:flat", "zero2", "zero3", "tensor_zero1", "tensor_zero3"}) {
      Session session(communicator, mode, options);
      session.trainer().step({session.batch(0, /*samples=*/1)});
      if (reference.empty()) reference = session.weights();
      EXPECT_TRUE(same_bits(session.weights(), reference)) << mode;
    }
  });
}

}  // namespace
}  // namespace zero::testing

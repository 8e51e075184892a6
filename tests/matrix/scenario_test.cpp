// What happens to models in practice, under every strategy, where it is more than a loop of
// tests/fuzz can say.

#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/optim/adamw.hpp>

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

TEST_P(Scenario, AModelThatIsHeldIsRefusedToAnotherStrategy) {
  on_modes(GetParam(), all_strategies(),
           [](dist::Communicator& communicator, const std::string& mode) {
             Session session(communicator, mode);
             expect_error(
                 [&] {
                   make_strategy("engine3", {session.model(), communicator, optim::adamw()});
                 },
                 {"the model is held by " + mode + ": a strategy gives its model back"});
             session.step(0);  // the refused constructor changed nothing
             session.strategy().release();
             expect_error([&] { session.step(1); }, {mode + " has released its model"});
           });
}

}  // namespace
}  // namespace zero::testing

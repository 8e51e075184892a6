// Losses that a program computes itself, from predict() or by calling the module, on all ranks or
// on some, in all micro-batches or in some; and losses that no backward() can take.

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(OwnLoss, 2, 3);

data::Batch batch_of(EngineRun& run, int number, std::int64_t terms) {
  data::Batch batch = run.toy.batch(run.rank, number);
  batch.loss_terms = terms;
  return batch;
}

// Without Engine::forward().
at::Tensor own_loss(EngineRun& run, const data::Batch& batch) { return run.toy.model->loss(batch); }

// At stage 3 ranks gather in different functions then, which is an error that names these:
// call_mismatch_test.cpp.
TEST_P(OwnLoss, BesideLossesWithLossTermsIsAnErrorOnAllRanks) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    if (stage == 3) return;
    EngineRun run(communicator, {.overlap = {.stage = stage}}), undisturbed(communicator, {});
    const data::Batch batch = batch_of(run, 0, 4);
    const bool mine = communicator.rank() == 1;
    const at::Tensor loss = mine ? own_loss(run, batch) : run.engine.forward(batch);
    expect_error([&] { run.engine.backward(loss); },
                 {"the loss of micro-batch 1 on rank 1 was not computed from what "
                  "Engine::forward() returned",
                  "leave loss_terms at 0"});
    EXPECT_TRUE(run.step(0));  // nothing has happened
    EXPECT_TRUE(undisturbed.step(0));
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST_P(OwnLoss, InASecondMicroBatchIsAnErrorIfTheFirstHadLossTerms) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = 2});
    run.engine.backward(run.engine.forward(batch_of(run, 0, 4)));
    const at::Tensor loss = own_loss(run, batch_of(run, 1, 4));
    expect_error([&] { run.engine.backward(loss); },
                 {communicator.size() == 2 ? "the loss of micro-batch 2 on ranks 0, 1 was"
                                           : "the loss of micro-batch 2 on ranks 0, 1, 2 was"});
  });
}

TEST_P(OwnLoss, WithoutLossTermsHasTheBitsOfForward) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const EngineConfig config{.overlap = {.stage = stage}, .accumulation_steps = 2};
    EngineRun forward(communicator, config), everywhere(communicator, config);
    EngineRun on_some(communicator, config);
    for (int m = 0; m < 4; ++m) {
      // With one sample, the toy's loss is the mean if it is told so, and if it is not.
      data::Batch batch = forward.toy.batch(forward.rank, m, /*samples=*/1);
      forward.engine.backward(forward.engine.forward(batch));
      batch.loss_terms = 0;
      everywhere.engine.backward(own_loss(everywhere, batch));
      const bool own = stage < 3 && (communicator.rank() + m) % 2 == 0;
      on_some.engine.backward(own ? own_loss(on_some, batch) : on_some.engine.forward(batch));
      for (EngineRun* run : {&forward, &everywhere, &on_some}) run->engine.step();
    }
    EXPECT_EQ(forward.engine.steps(), 2);
    EXPECT_TRUE(same_bits(everywhere.weights(), forward.weights()));
    EXPECT_TRUE(same_bits(on_some.weights(), forward.weights()));
  });
}

TEST_P(OwnLoss, WithoutAGradientIsAnErrorOnAllRanks) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}}), undisturbed(communicator, {});
    const at::Tensor loss = run.forward(0);
    for (const at::Tensor& bad : {at::Tensor(), loss.detach(), loss.expand({2})}) {
      expect_error([&] { run.engine.backward(communicator.rank() == 0 ? bad : loss); },
                   {"backward() of a loss that is not one real number with a gradient on rank 0"});
    }
    run.engine.backward(loss);
    EXPECT_TRUE(run.engine.step());
    EXPECT_TRUE(undisturbed.step(0));
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
    const at::Tensor fresh = run.forward(1);
    expect_error([&] { run.engine.backward(communicator.rank() == 1 ? loss : fresh); },
                 {"forward() came before the last update, on rank 1"});
  });
}

}  // namespace
}  // namespace zero::testing

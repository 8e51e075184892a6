// Ranks that were given different things: an error on all of them, before training, that names the
// first difference and both sides.

#include <ATen/ops/ones.h>

#include <tests/support/session.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs `setup` on three ranks, of which the last is told to be different.
void expect_refused(const std::function<void(dist::Communicator&, bool different)>& setup,
                    const std::string& about, const std::string& of_rank_0,
                    const std::string& of_rank_2) {
  const auto exits = ranks_ended({.world_size = 3}, [&](dist::Communicator& communicator) {
    setup(communicator, communicator.rank() == 2);
  });
  expect_errors(
      exits, AllOf(HasSubstr("ranks disagree about " + about), HasSubstr("rank 0 has " + of_rank_0),
                   HasSubstr("rank 2 has " + of_rank_2)));
}

void expect_sessions_refused(const std::function<void(SessionOptions&)>& change,
                             const std::string& about, const std::string& of_rank_0,
                             const std::string& of_rank_2) {
  expect_refused(
      [&](dist::Communicator& communicator, bool different) {
        SessionOptions options;
        if (different) change(options);
        Session(communicator, "zero1", options).step(0);
      },
      about, of_rank_0, of_rank_2);
}

const std::string kModel = "the model or the strategy";

TEST(Disagreement, AboutTheMode) {
  expect_refused(
      [](dist::Communicator& communicator, bool different) {
        Session(communicator, different ? "zero1:naive" : "zero1").step(0);
      },
      "the mode", "zero1", "zero1:naive");
}

TEST(Disagreement, AboutTheModelOrItsTraining) {
  const std::string owner = "variant 'owner', ", first = "parameter 'first' [7, 5] Float";
  expect_sessions_refused(
      [](SessionOptions& o) { o.accumulation = train::Accumulation::kReduceEach; }, kModel,
      owner + "accumulation before the reduction", owner + "a reduction of every micro-batch");
  expect_sessions_refused([](SessionOptions& o) { o.reduce_type = dist::ReduceType::kFloat32; },
                          kModel, "gradients of 2 bytes reduced in",
                          "gradients of 2 bytes reduced in float32");
  expect_sessions_refused([](SessionOptions& o) { o.model.inputs = 6; }, kModel,
                          first + ", trainable", "parameter 'first' [7, 6] Float, trainable");
  expect_sessions_refused([](SessionOptions& o) { o.model.dtype = at::kDouble; }, kModel, first,
                          "parameter 'first' [7, 5] Double");
  expect_sessions_refused([](SessionOptions& o) { o.model.parts += "a"; }, kModel, "nothing more",
                          "parameter 'parts.3.weight' [7, 7]");
  expect_sessions_refused([](SessionOptions& o) { o.model.parts = "fnf"; }, kModel,
                          "parameter 'parts.0.weight' [7, 7] Float, trainable",
                          "parameter 'parts.0.weight' [7, 7] Float, frozen");
  expect_sessions_refused([](SessionOptions& o) { o.trainer.clip_norm = 1; },
                          "the step in Trainer::Trainer", "a clip norm of 0", "a clip norm of 1");
  expect_sessions_refused([](SessionOptions& o) { o.trainer.first_step = 7; },
                          "the step in Trainer::Trainer", "first step 0", "first step 7");
}

TEST(Disagreement, AboutTheNumberOfMicroBatches) {
  for (const bool evaluating : {false, true}) {
    const auto exits = ranks_ended({.world_size = 3}, [&](dist::Communicator& communicator) {
      Session session(communicator, "zero2");
      std::vector<data::Batch> batches(communicator.rank() == 2 ? 3 : 2, session.batch(0));
      if (evaluating) session.trainer().evaluate(batches);
      session.trainer().step(batches);
    });
    expect_errors(exits, HasSubstr("step 0: rank 2 has 3 micro-batches, rank 0 has 2"));
  }
}

// A branch that only one rank takes: under stage 3 a unit is gathered by all ranks or by none.
TEST(Disagreement, AboutWhichUnitsRun) {
  const auto train = [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, with_parts("aa"));
    if (communicator.rank() == 1) session.model().stop_after(1);
    for (int s = 0; s < 2; ++s) session.step(s);
    return session.weights();
  };
  on_ranks(2, [&](dist::Communicator& communicator) {
    const std::vector<at::Tensor> reference = train(communicator, "ddp");
    for (const std::string& mode : all_modes()) {
      if (gathers_by_unit(mode)) continue;
      EXPECT_TRUE(same_bits(train(communicator, mode), reference)) << mode;
    }
  });
  for (const std::string mode : {"zero3", "tensor_zero3", "engine3"}) {
    SCOPED_TRACE(mode);
    const auto exits =
        ranks_ended({.timeout = std::chrono::seconds(2)},
                    [&](dist::Communicator& communicator) { train(communicator, mode); });
    expect_errors(exits,
                  ::testing::ContainsRegex("broadcast|reduce|gather|order of units|no answer"));
  }
}

// Units of one size in different orders: without the unit in the fingerprint of a gather, ranks of
// chapters 03 and 04 would take each other's parameters.
TEST(Disagreement, AboutTheOrderOfEqualUnits) {
  for (const std::string mode : {"zero3", "tensor_zero3", "engine3"}) {
    SCOPED_TRACE(mode);
    const auto exits = ranks_ended({}, [&](dist::Communicator& communicator) {
      Session session(communicator, mode, with_parts("aa"));
      session.model().call_in_forward([&] {
        session.model().run_part(communicator.rank() == 1 ? 1 : 0, at::ones({2, 7}));
      });
      session.step(0);
    });
    expect_errors(exits, ::testing::ContainsRegex("rank 0 (is in .*unit 'parts.0'|has parts.0)"));
  }
}

// The ranks of a group gather with each other: its fingerprints have the unit, too.
TEST(Disagreement, AboutTheOrderOfEqualUnitsInAGroup) {
  const auto exits = ranks_ended({.world_size = 4}, [&](dist::Communicator& communicator) {
    Session session(communicator, "hsdp3:shard_size=2", with_parts("aa"));
    session.model().call_in_forward([&] {
      session.model().run_part(communicator.rank() == 1 ? 1 : 0, at::ones({2, 7}));
    });
    session.step(0);
  });
  expect_errors({exits[0], exits[1]}, ::testing::ContainsRegex("rank 0 is in .*unit 'parts.0'"));
}

}  // namespace
}  // namespace zero::testing

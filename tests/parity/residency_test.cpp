// Every strategy and variant of a chapter against its own formulas: bytes at rest by category, what
// else is alive, and bytes on the wire. Equal weights cannot show that a stage shards nothing; this
// can.

#include <tests/support/batch_model.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>

#include "own_modes.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(Residency, 1, 2, 3);

// What a rank has after its second step under a mode, and what the strategy says of it.
struct Seen {
  train::ModelStateBytes held, predicted;
  std::int64_t total = 0;  // bytes of everything that is alive
  dist::Traffic sent;      // in the second step
  std::int64_t predicted_traffic = 0, gathered = 0;
};

Seen train_and_look(dist::Communicator& communicator, const std::string& mode,
                    train::Accumulation accumulation = train::Accumulation::kLocal,
                    std::size_t micro_batches = 1, bool has_values = false) {
  const std::vector<data::Batch> first(micro_batches, Toy().batch(communicator.rank(), 0));
  const std::vector<data::Batch> second(micro_batches, Toy().batch(communicator.rank(), 1));
  const memory::Snapshot before = memory::snapshot();
  Toy toy;
  if (has_values) nn::initialize_parameters(*toy.model, toy.values);
  const auto strategy = make_strategy(mode, {*toy.model, communicator, optim::adamw(),
                                             has_values ? nullptr : &toy.values, "", accumulation});
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  trainer.step(first);
  const dist::Traffic traffic = communicator.traffic();
  trainer.step(second);
  return {.held = states_since(before),
          .predicted = strategy->costs().at_rest,
          .total = memory::snapshot().total - before.total,
          .sent = communicator.traffic().since(traffic),
          .predicted_traffic = strategy->costs().sent,
          .gathered = strategy->costs().gathered};
}

TEST_P(Residency, ModelStatesAtRestAreThoseOfTheFormula) {
  on_own_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    const Seen seen = train_and_look(communicator, mode);
    EXPECT_EQ(text_of(seen.held), text_of(seen.predicted));
    const Seen each = train_and_look(communicator, mode, train::Accumulation::kReduceEach, 2);
    EXPECT_EQ(text_of(each.held), text_of(each.predicted)) << "every micro-batch is reduced";
    const Seen plain = train_and_look(communicator, mode, train::Accumulation::kLocal, 1,
                                      /*has_values=*/true);
    EXPECT_EQ(text_of(plain.held), text_of(plain.predicted)) << "values came before the strategy";
  });
}

// The charges come from the code under test; the allocator's total does not.
TEST_P(Residency, NothingElseIsAliveAtRest) {
  on_own_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    const Seen seen = train_and_look(communicator, mode);
    EXPECT_LE(seen.total - seen.predicted.total(), 64);
  });
}

// Gradients are added up and travel once, what is gathered travels with every micro-batch.
TEST_P(Residency, BytesSentForMicroBatchesAreThoseOfTheFormula) {
  on_own_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    const Seen seen = train_and_look(communicator, mode, train::Accumulation::kLocal, 3);
    EXPECT_EQ(training_bytes(seen.sent), seen.predicted_traffic + 2 * seen.gathered);
  });
}

// Of three micro-batches gradients travel three times; parameters do where a stage gathers them for
// every forward and backward, and once where updated ones are sent.
TEST_P(Residency, BytesSentAreThoseOfTheFormulaAlsoForMicroBatchesReducedOneByOne) {
  on_own_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    using dist::Purpose;
    const Seen local = train_and_look(communicator, mode);
    EXPECT_EQ(training_bytes(local.sent), local.predicted_traffic);
    const Seen one = train_and_look(communicator, mode, train::Accumulation::kReduceEach, 1);
    const dist::Traffic three =
        train_and_look(communicator, mode, train::Accumulation::kReduceEach, 3).sent;
    EXPECT_EQ(training_bytes(one.sent), one.predicted_traffic);
    EXPECT_EQ(three.bytes(Purpose::kGradient), 3 * one.sent.bytes(Purpose::kGradient));
    const std::int64_t parameters = one.sent.bytes(Purpose::kParameter);
    EXPECT_THAT(three.bytes(Purpose::kParameter), ::testing::AnyOf(parameters, 3 * parameters));
    // What is naive is so in every micro-batch.
    if (mode.ends_with(":naive") || mode == "ddp") {
      EXPECT_GT(three.at(dist::Operation::kAllReduce, Purpose::kGradient).calls, 0);
      EXPECT_EQ(three.at(dist::Operation::kReduceScatter, Purpose::kGradient).calls, 0);
    }
  });
}

}  // namespace
}  // namespace zero::testing

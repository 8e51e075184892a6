// Every strategy and variant against its own formulas: bytes at rest by category, what else is
// alive, and bytes on the wire. Equal weights cannot show that a stage shards nothing; this can.

#include <gtest/gtest.h>

#include <tests/support/modes.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

namespace zero::testing {
namespace {

using memory::Category;

class Residency : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Residency, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

// Trains two steps under `mode` and calls `look` before the model is there and after the last step.
void train_and_look(dist::Communicator& communicator, const std::string& mode,
                    const std::function<void(train::Strategy&, const memory::Snapshot& before,
                                             const dist::Traffic& of_last_step)>& look,
                    train::Accumulation accumulation = train::Accumulation::kLocal,
                    std::size_t micro_batches = 1) {
  train::Registry registry;
  train::register_all_chapters(registry);
  const std::vector<data::Batch> first(micro_batches, Toy().batch(communicator.rank(), 0));
  const std::vector<data::Batch> second(micro_batches, Toy().batch(communicator.rank(), 1));
  const memory::Snapshot before = memory::snapshot();
  Toy toy;
  const auto strategy = registry.make(mode, {*toy.model, communicator, optim::adamw(), &toy.values,
                                             "", train::Ownership::kBySize, accumulation});
  train::Trainer trainer(*strategy);
  trainer.step(first);
  const dist::Traffic traffic = communicator.traffic();
  trainer.step(second);
  look(*strategy, before, communicator.traffic().since(traffic));
}

void expect_states_of_the_formula(int ranks, train::Accumulation accumulation,
                                  std::size_t micro_batches) {
  on_ranks(ranks, [=](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      train_and_look(
          communicator, mode,
          [&](train::Strategy& strategy, const memory::Snapshot& before, const dist::Traffic&) {
            const memory::Snapshot now = memory::snapshot();
            const train::ModelStateBytes formula = strategy.predicted_bytes();
            EXPECT_EQ(now[Category::kParameters] - before[Category::kParameters],
                      formula.parameters)
                << mode;
            EXPECT_EQ(now[Category::kGradients] - before[Category::kGradients], formula.gradients)
                << mode;
            EXPECT_EQ(now[Category::kOptimizer] - before[Category::kOptimizer], formula.optimizer)
                << mode;
          },
          accumulation, micro_batches);
    }
  });
}

TEST_P(Residency, ModelStatesAtRestAreThoseOfTheFormula) {
  expect_states_of_the_formula(GetParam(), train::Accumulation::kLocal, 1);
}

TEST_P(Residency, AlsoWhereEveryMicroBatchIsReduced) {
  expect_states_of_the_formula(GetParam(), train::Accumulation::kReduceEach, 2);
}

// The charges come from the code under test; the allocator's total does not.
TEST_P(Residency, NothingElseIsAliveAtRest) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      train_and_look(
          communicator, mode,
          [&](train::Strategy& strategy, const memory::Snapshot& before, const dist::Traffic&) {
            const std::int64_t more = memory::snapshot().total - before.total;
            EXPECT_LE(more - strategy.predicted_bytes().total(), 64) << mode;
          });
    }
  });
}

TEST_P(Residency, BytesSentAreThoseOfTheFormula) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      train_and_look(
          communicator, mode,
          [&](train::Strategy& strategy, const memory::Snapshot&, const dist::Traffic& sent) {
            EXPECT_EQ(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter),
                      strategy.predicted_traffic())
                << mode;
          });
    }
  });
}

// Of three micro-batches gradients travel three times; parameters do where a stage gathers them for
// every forward and backward, and once where updated ones are sent.
TEST_P(Residency, BytesSentForMicroBatchesReducedOneByOneAreThoseOfTheFormula) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto sent_by = [&](const std::string& mode, std::size_t micro_batches) {
      dist::Traffic traffic;
      std::int64_t formula = 0;
      train_and_look(
          communicator, mode,
          [&](train::Strategy& strategy, const memory::Snapshot&, const dist::Traffic& sent) {
            traffic = sent;
            formula = strategy.predicted_traffic();
          },
          train::Accumulation::kReduceEach, micro_batches);
      return std::make_pair(traffic, formula);
    };
    for (const std::string& mode : all_modes()) {
      const auto [one, formula] = sent_by(mode, 1);
      const auto [three, same] = sent_by(mode, 3);
      using dist::Purpose;
      EXPECT_EQ(one.bytes(Purpose::kGradient) + one.bytes(Purpose::kParameter), formula) << mode;
      EXPECT_EQ(three.bytes(Purpose::kGradient), 3 * one.bytes(Purpose::kGradient)) << mode;
      EXPECT_TRUE(three.bytes(Purpose::kParameter) == one.bytes(Purpose::kParameter) ||
                  three.bytes(Purpose::kParameter) == 3 * one.bytes(Purpose::kParameter))
          << mode;
      // What is naive is so in every micro-batch.
      if (mode.ends_with(":naive") || mode == "ddp") {
        EXPECT_GT(three.at(dist::Operation::kAllReduce, Purpose::kGradient).calls, 0) << mode;
        EXPECT_EQ(three.at(dist::Operation::kReduceScatter, Purpose::kGradient).calls, 0) << mode;
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing

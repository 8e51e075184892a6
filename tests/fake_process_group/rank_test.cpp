// A rank of a fake process group beside the same rank of a real one: what it holds and sends.

#include <tests/support/session.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/states.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

// What can be the same although the others are missing.
struct Seen {
  train::ModelStateBytes predicted, held;
  std::int64_t predicted_traffic = 0;
  dist::Traffic setup, step;
};

// Trains two steps.
Seen look_at(dist::Communicator& communicator, const std::string& mode,
             const RandomModelConfig& config) {
  Seen seen;
  const dist::Traffic at_start = communicator.traffic();
  const memory::Snapshot before = memory::snapshot();
  const auto model = make_deferred<RandomModel>(config);
  nn::SeededValues values(3);
  // Master weights are without effect on float32.
  const auto strategy = make_strategy(
      mode, {*model, communicator, optim::with_master_weights(optim::adamw()), &values, ""});
  seen.setup = communicator.traffic().since(at_start);
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  for (const int step : {0, 1}) {
    const dist::Traffic earlier = communicator.traffic();
    trainer.step({random_model_batch(config, 17, communicator.rank(), step)});
    seen.step = communicator.traffic().since(earlier);
  }
  seen.held = states_since(before);
  seen.predicted = strategy->costs().at_rest;
  seen.predicted_traffic = strategy->costs().sent;
  return seen;
}

void expect_same(const Seen& fake, const Seen& real) {
  EXPECT_EQ(text_of(fake.predicted), text_of(real.predicted));
  EXPECT_EQ(text_of(fake.held), text_of(real.held));
  EXPECT_EQ(text_of(real.held), text_of(real.predicted));
  EXPECT_EQ(training_bytes(fake.step), fake.predicted_traffic);
  EXPECT_EQ(fake.predicted_traffic, real.predicted_traffic);
  for (std::size_t p = 0; p < dist::kPurposes; ++p) {
    const auto purpose = static_cast<dist::Purpose>(p);
    EXPECT_EQ(fake.setup.bytes(purpose), real.setup.bytes(purpose)) << name(purpose);
    EXPECT_EQ(fake.step.bytes(purpose), real.step.bytes(purpose)) << name(purpose);
    EXPECT_EQ(fake.step.calls(purpose), real.step.calls(purpose)) << name(purpose);
  }
}

ZERO_TESTS_ON_RANKS(FakeProcessGroup, 1, 2, 3, 4);

TEST_P(FakeProcessGroup, ARankHoldsAndSendsWhatItDoesInARealOne) {
  on_all_modes(GetParam(), [](dist::Communicator& real, const std::string& mode) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(c10::toString(dtype));
      const RandomModelConfig config{.parts = "sanfg", .dtype = dtype};
      dist::Communicator fake = dist::connect_fake(real.rank(), real.size());
      expect_same(look_at(fake, mode, config), look_at(real, mode, config));
    }
  });
}

}  // namespace
}  // namespace zero::testing

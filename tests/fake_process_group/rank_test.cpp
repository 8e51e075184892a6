// A rank of a fake process group beside the same rank of a real one: what it holds and sends.

#include <tests/support/deferred.hpp>
#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <zero/distributed/fake/fake_backend.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

// One rank that has just been given its first values, with nobody else where it is fake.
struct Rank {
  Rank(dist::Communicator& communicator, const std::string& mode, const RandomModelConfig& config)
      : values(3) {
    model = make_deferred<RandomModel>(config);
    const auto optimizer = optim::with_master_weights(optim::adamw());  // none in float32
    strategy = make_strategy(mode, {*model, communicator, optimizer, &values, ""});
  }

  std::shared_ptr<RandomModel> model;
  nn::SeededValues values;
  std::unique_ptr<train::Strategy> strategy;
};

// What can be the same although the others are missing.
struct Seen {
  train::ModelStateBytes predicted;
  train::ModelStateBytes held;
  std::int64_t predicted_traffic = 0;
  dist::Traffic setup;
  dist::Traffic step;
};

Seen look_at(dist::Communicator& communicator, const std::string& mode,
             const RandomModelConfig& config) {
  Seen seen;
  const dist::Traffic at_start = communicator.traffic();
  const memory::Snapshot before = memory::snapshot();
  Rank rank(communicator, mode, config);
  train::Strategy& strategy = *rank.strategy;
  seen.setup = communicator.traffic().since(at_start);
  const auto batch = [&](int step) {
    return random_model_batch(config, 17, communicator.rank(), step);
  };
  train::Trainer trainer(strategy);
  trainer.step({batch(0)});
  const dist::Traffic traffic = communicator.traffic();
  trainer.step({batch(1)});
  seen.step = communicator.traffic().since(traffic);
  seen.held = states_since(before);
  seen.predicted = strategy.costs().at_rest;
  seen.predicted_traffic = strategy.costs().sent;
  return seen;
}

void expect_same(const Seen& fake, const Seen& real, const std::string& mode) {
  EXPECT_EQ(text_of(fake.predicted), text_of(real.predicted)) << mode;
  EXPECT_EQ(text_of(fake.held), text_of(real.held)) << mode;
  EXPECT_EQ(training_bytes(fake.step), fake.predicted_traffic) << mode;
  for (std::size_t p = 0; p < dist::kPurposes; ++p) {
    const auto purpose = static_cast<dist::Purpose>(p);
    EXPECT_EQ(fake.setup.bytes(purpose), real.setup.bytes(purpose)) << mode << name(purpose);
    EXPECT_EQ(fake.step.bytes(purpose), real.step.bytes(purpose)) << mode << name(purpose);
    EXPECT_EQ(fake.step.calls(purpose), real.step.calls(purpose)) << mode << name(purpose);
  }
}

ZERO_TESTS_ON_RANKS(FakeProcessGroup, 1, 2, 3, 4);

TEST_P(FakeProcessGroup, ARankHoldsAndSendsWhatItDoesInARealOne) {
  on_ranks(GetParam(), [](dist::Communicator& real) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const RandomModelConfig config{.parts = "sanfg", .dtype = dtype};
      for (const std::string& mode : all_modes()) {
        SCOPED_TRACE(c10::toString(dtype));
        const Seen of_real = look_at(real, mode, config);
        dist::Communicator fake = dist::connect_fake(real.rank(), real.size());
        expect_same(look_at(fake, mode, config), of_real, mode);
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing

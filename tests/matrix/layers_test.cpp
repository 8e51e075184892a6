// Units made of layers, which a strategy may gather one by one: what happens to models in practice.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

SessionOptions layered(const std::string& parts) {
  SessionOptions options;
  options.model.parts = parts;
  return options;
}

void set_trainable(Session& session, const std::string& name, bool trainable) {
  int found = 0;
  for (const nn::Parameter& p : session.strategy().list().parameters) {
    if (!p.name.starts_with(name)) continue;
    p.tensor.requires_grad_(trainable);
    ++found;
  }
  ASSERT_GT(found, 0) << name;
}

class LayersOfUnits : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LayersOfUnits, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(LayersOfUnits, AreFrozenAndThawedBetweenSteps) {
  expect_all_modes_like_ddp(GetParam(), layered("all"), [](Session& session) {
    session.step(0);
    const std::vector<at::Tensor> before = session.weights();
    set_trainable(session, "parts.1.first", false);
    set_trainable(session, "parts.2.norm", false);
    session.step(1);
    const std::vector<at::Tensor> between = session.weights();
    set_trainable(session, "parts.1.first", true);
    session.step(2);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::string& name = session.strategy().list().parameters[i].name;
      EXPECT_EQ(at::equal(before[i], between[i]),
                name.starts_with("parts.1.first") || name.starts_with("parts.2.norm"))
          << name;
    }
  });
}

TEST_P(LayersOfUnits, RunTwiceBeforeOneBackward) {
  expect_all_modes_like_ddp(GetParam(), layered("lal"), [](Session& session) {
    train::Strategy& strategy = session.strategy();
    for (int s = 0; s < 2; ++s) {
      strategy.zero_grad();
      const at::Tensor one = strategy.forward(session.batch(2 * s));
      const at::Tensor other = strategy.forward(session.batch(2 * s + 1));
      strategy.backward(one + 0.5 * other);
      strategy.finish_backward();
      strategy.optimizer_step();
      strategy.sync_parameters();
    }
  });
}

TEST_P(LayersOfUnits, AreLeftOutByTheLoss) {
  expect_all_modes_like_ddp(GetParam(), layered("lal"), [](Session& session) {
    session.step(0);
    session.model().stop_after(2);
    session.step(1);
    session.model().stop_after(3);
    session.step(2);
  });
}

// By its formula, which counts how often each was used.
TEST_P(LayersOfUnits, SendWhatTheModeSaysAndLeaveNothingWhole) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode, layered("lat"));
      const auto parameters = [] { return memory::snapshot()[memory::Category::kParameters]; };
      const std::int64_t rest = parameters();
      for (int s = 0; s < 3; ++s) {
        if (s == 1) session.model().stop_after(1);
        const dist::Traffic before = communicator.traffic();
        session.step(s);
        const dist::Traffic sent = communicator.traffic().since(before);
        // Prefetch gathers in vain what the step before has used.
        if (mode != "engine3" || s != 1) {
          EXPECT_EQ(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter),
                    session.strategy().predicted_traffic())
              << mode << ", step " << s;
        }
        EXPECT_EQ(parameters(), rest) << mode << ", step " << s;
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing

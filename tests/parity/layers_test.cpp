// Traffic of units made of layers, which a strategy may gather one by one.

#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <zero/memory/accounting.hpp>

#include "own_modes.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(LayersOfUnits, 1, 2, 3, 4, 8);

// By its formula, which counts how often each was used.
TEST_P(LayersOfUnits, SendWhatTheModeSaysAndLeaveNothingWhole) {
  on_own_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, with_parts("lat"));
    const auto parameters = [] { return memory::snapshot()[memory::Category::kParameters]; };
    const std::int64_t rest = parameters();
    for (int s = 0; s < 3; ++s) {
      if (s == 1) session.model().stop_after(1);
      const dist::Traffic before = communicator.traffic();
      session.step(s);
      const dist::Traffic sent = communicator.traffic().since(before);
      // Prefetch gathers in vain what the step before has used.
      if ((mode != "engine3" && mode != "hsdp3" && !mode.starts_with("hpz")) || s != 1) {
        EXPECT_EQ(training_bytes(sent), session.strategy().costs().sent) << "step " << s;
      }
      EXPECT_EQ(parameters(), rest) << "step " << s;
    }
  });
}

}  // namespace
}  // namespace zero::testing

// How many collectives a step takes, by the communicator, not by the strategy's own bookkeeping.

#include <map>

#include <tests/support/session.hpp>
#include <tests/support/states.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;

ZERO_TESTS_ON_RANKS(Points, 1, 2, 3);

// Two units and a root, nothing frozen, every parameter used once.
SessionOptions plain_model() {
  SessionOptions options;
  options.model = {.inputs = 50, .width = 30, .parts = "aa", .tied = true};
  return options;
}

dist::Traffic traffic_of_a_step(dist::Communicator& communicator, const std::string& mode,
                                const SessionOptions& options = plain_model()) {
  Session session(communicator, mode, options);
  const dist::Traffic before = communicator.traffic();
  session.step(0);
  return communicator.traffic().since(before);
}

// Of 6 parameters in 3 units, 2 of them (tied, so really 5): a collective for each, no more.
TEST_P(Points, AStepTakesTheStatedNumberOfCollectives) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::int64_t root = 1, inner = 4, all = root + inner, units = 3;
    const std::map<std::string, std::pair<std::int64_t, std::int64_t>> stated = {
        {"ddp", {all, 0}},
        {"ddp:flat", {1, 0}},
        {"zero1", {all, all}},
        {"zero1:naive", {all, all}},
        {"zero2", {all, all}},
        {"zero2:after", {all, all}},
        {"zero2:placeholder", {all, all}},
        {"zero3", {all, root + 2 * inner}},  // the root is kept from forward to backward
        {"zero3:whole", {all, all}},
        // A buffer for each of the three units, or for each parameter.
        {"tensor_zero1", {units, units}},
        {"tensor_zero1:naive", {units, units}},
        {"tensor_zero1:per_parameter", {all, all}},
        {"tensor_zero2", {units, units}},
        {"tensor_zero2:per_parameter", {all, all}},
        {"tensor_zero3", {units, root + 2 * (units - 1)}},
        {"tensor_zero3:per_parameter", {all, root + 2 * inner}},
        {"tensor_zero3:whole", {units, units}}};
    for (const auto& [mode, calls] : stated) {
      const dist::Traffic one = traffic_of_a_step(communicator, mode);
      EXPECT_EQ(one.calls(Purpose::kGradient), calls.first) << mode;
      // The shard of a rank by itself is everything: there is nothing to gather.
      const bool alone = mode.starts_with("tensor_zero3") && communicator.size() == 1;
      EXPECT_EQ(one.calls(Purpose::kParameter), alone ? 0 : calls.second) << mode;
      // The number of loss terms; all that ranks must know before the update.
      EXPECT_EQ(one.calls(Purpose::kControl), 2) << mode;
    }
  });
}

// The norm travels with what ranks tell each other anyway.
TEST_P(Points, ClippingTakesNoCollective) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    SessionOptions options = plain_model();
    const dist::Traffic without = traffic_of_a_step(communicator, mode, options);
    options.trainer.clip_norm = 0.01;
    const dist::Traffic with = traffic_of_a_step(communicator, mode, options);
    EXPECT_EQ(with.calls(Purpose::kControl), without.calls(Purpose::kControl));
    EXPECT_EQ(with.calls(Purpose::kGradient), without.calls(Purpose::kGradient));
  });
}

}  // namespace
}  // namespace zero::testing

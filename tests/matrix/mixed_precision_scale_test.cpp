// Loss scales: a gradient that overflows on one rank makes all of them leave out the same step.

#include <cmath>
#include <limits>

#include <tests/support/error_of.hpp>
#include <tests/support/two_bytes.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(MixedPrecisionScale, 2, 3);

// An infinity or NaN in one element of one gradient of one rank, which need not own the parameter.
void plant(Session& session, int rank, std::size_t index, double value) {
  session.strategy().passes().observe_gradients(
      [&session, rank, index, value](std::size_t i, const at::Tensor& gradient) {
        if (i == index && session.communicator().rank() == rank) {
          gradient.detach().view({-1})[0].fill_(value);
        }
      });
}

TEST_P(MixedPrecisionScale, AnOverflowOnOneRankMakesAllLeaveOutTheStep) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const int last = communicator.size() - 1;
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode, mixed(at::kHalf));
      EXPECT_FALSE(session.step(0).skipped);
      const WholeState before = whole_state(session);
      double scale = 1024;
      // Parameters of several owners.
      for (const std::size_t index : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
        for (const double value :
             {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
          plant(session, last, index, value);
          const tools::StepResult result = session.step(1);
          EXPECT_TRUE(result.skipped) << mode;
          EXPECT_EQ(result.loss_scale, scale) << mode;
          EXPECT_TRUE(std::isfinite(result.loss)) << mode;
          EXPECT_TRUE(same_state(whole_state(session), before)) << mode << " updated something";
          scale /= 2;
        }
      }
      session.strategy().passes().observe_gradients({});
      EXPECT_FALSE(session.step(1).skipped) << mode;
      EXPECT_FALSE(same_state(whole_state(session), before)) << mode;
    }
  });
}

TEST(MixedPrecisionLossScale, NeedsAnOptimizerThatUndoesIt) {
  on_ranks(2, [](dist::Communicator& communicator) {
    SessionOptions options = mixed(at::kHalf);
    options.optimizer = optim::adamw();
    expect_error([&] { Session(communicator, "ddp", options); }, {"with_master_weights"});
  });
}

}  // namespace
}  // namespace zero::testing

// Clipping: every mode finds the norm of the gradient that nobody holds whole, and scales by it.

#include <c10/core/GradMode.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>

#include <tests/support/session.hpp>

namespace zero::testing {
namespace {

SessionOptions odd_model() { return with_parts("anfsg"); }

// Forward, backward and reduction of a step, and no more.
void reduce_gradients(Session& session, int step) {
  session.strategy().zero_grad();
  session.strategy().backward(forward_batch(session.strategy(), session.batch(step)));
  session.strategy().finish_backward();
}

ZERO_TESTS_ON_RANKS(Clipping, 1, 2, 3, 4, 8);

TEST_P(Clipping, WhatIsWithinTheLimitStaysAsItIs) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, odd_model());
    reduce_gradients(session, 0);
    const std::vector<at::Tensor> before = session.gradients();
    const float norm = session.strategy().clip_grad_norm(1e9);
    EXPECT_EQ(session.strategy().clip_grad_norm(2 * norm), norm);
    EXPECT_TRUE(same_bits(session.gradients(), before));
  });
}

// One rank's element must not be lost in what the ranks exchange.
TEST_P(Clipping, ANaNOfOneRankIsTheNormOfAll) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::int64_t last = communicator.size() - 1;
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode, odd_model());
      reduce_gradients(session, 0);
      for (std::size_t i = 0; communicator.rank() == last && i < session.strategy().list().size();
           ++i) {
        const train::ParameterShard mine = session.strategy().placement(i).updated;
        if (!mine.tensor.defined() || !mine.tensor.grad().defined()) continue;
        mine.tensor.mutable_grad().view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
        break;
      }
      // Where a rank has no share of this small model there is nothing to spoil.
      at::Tensor spoilt = at::zeros({1}, at::kInt);
      for (const at::Tensor& gradient : session.gradients()) {
        if (gradient.defined() && gradient.isnan().any().item<bool>()) spoilt.fill_(1);
      }
      const float norm = session.strategy().clip_grad_norm(1.0);
      if (spoilt.item<int>() == 1 && session.strategy().placements().group != nullptr) {
        EXPECT_TRUE(std::isnan(norm)) << mode;
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing

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
  session.strategy().backward(session.strategy().forward(session.batch(step)));
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
        const train::ParameterShard mine = session.strategy().piece(i);
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
      if (spoilt.item<int>() == 1 && session.strategy().sharded()) {
        EXPECT_TRUE(std::isnan(norm)) << mode;
      }
    }
  });
}

// What plain LibTorch does to the same gradients. In float it is the same coefficient, and that of
// a float would be off by 1e-8 in double.
TEST_P(Clipping, GradientsOfDoubleAreMultipliedByADouble) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    SessionOptions options = odd_model();
    options.model.dtype = at::kDouble;
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode, options);
      reduce_gradients(session, 0);
      std::vector<at::Tensor> leaves, expected;
      for (const at::Tensor& gradient : session.gradients()) {
        if (!gradient.defined()) continue;
        leaves.push_back(at::zeros_like(gradient).requires_grad_());
        leaves.back().mutable_grad() = gradient.clone();
      }
      const double limit = 0.01;
      const double whole = torch::nn::utils::clip_grad_norm_(leaves, limit);
      EXPECT_GT(whole, limit);
      EXPECT_FLOAT_EQ(session.strategy().clip_grad_norm(limit), static_cast<float>(whole));
      for (const at::Tensor& leaf : leaves) expected.push_back(leaf.grad());
      std::vector<at::Tensor> clipped = session.gradients();
      std::erase_if(clipped, [](const at::Tensor& gradient) { return !gradient.defined(); });
      EXPECT_TRUE(close_to(clipped, expected, 1e-14)) << mode;
    }
  });
}

}  // namespace
}  // namespace zero::testing

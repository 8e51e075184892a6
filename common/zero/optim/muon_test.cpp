// Muon against the formula, written here another way and in double, and the parameters that AdamW
// updates beside it.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <zero/optim/muon.hpp>

namespace zero::optim {
namespace {

at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

struct Weights : torch::nn::Module {
  at::Tensor add(const std::string& name, at::IntArrayRef sizes) {
    return register_parameter(name, normal(sizes, static_cast<std::uint64_t>(sizes[0])));
  }
  std::unique_ptr<Optimizer> made(const MuonOptions& matrices, const AdamWOptions& others = {}) {
    return muon(*this, matrices, others)(parameters());
  }
};

// X, a X + b (X X') X + c (X X')^2 X, and so on, whichever side of X is longer.
at::Tensor newton_schulz(const at::Tensor& matrix) {
  at::Tensor x = matrix.to(at::kDouble);
  x = x / x.square().sum().sqrt();
  for (int step = 0; step < 5; ++step) {
    const at::Tensor cube = at::matmul(at::matmul(x, x.t()), x);
    x = 3.4445 * x - 4.775 * cube + 2.0315 * at::matmul(at::matmul(x, x.t()), cube);
  }
  return x;
}

bool is_positive_definite(const at::Tensor& x) {
  return std::get<1>(at::linalg_cholesky_ex(x)).item<int>() == 0;
}

// 0.68 is the least that a step's polynomial makes of 0.56 to 1.2, and 1.2024 the most that it
// makes of anything below that. All singular values are between if both differences are positive
// definite.
TEST(Muon, MakesTheSingularValuesOfAMatrixNearlyOne) {
  for (const auto& [rows, columns] : {std::pair{24, 10}, {10, 24}, {9, 40}, {40, 9}}) {
    Weights net;
    const at::Tensor p = net.add("weight", {rows, columns});
    const at::Tensor before = p.detach().clone();
    p.mutable_grad() = 1e3 * normal({rows, columns}, 7);
    net.made({.learning_rate = 1, .weight_decay = 0, .as_large_as_adamw = false})->step();
    at::Tensor moved = (before - p.detach()).to(at::kDouble);
    if (rows > columns) moved = moved.t() / std::sqrt(1.0 * rows / columns);
    const at::Tensor squares = moved.matmul(moved.t()), one = at::eye(squares.size(0), at::kDouble);
    EXPECT_TRUE(is_positive_definite(squares - 0.68 * 0.68 * one)) << rows << " x " << columns;
    EXPECT_TRUE(is_positive_definite(1.21 * 1.21 * one - squares)) << rows << " x " << columns;
  }
}

TEST(Muon, MovesAMatrixByTheFormula) {
  for (const auto& [rows, columns] : {std::pair{5, 3}, {3, 5}, {17, 17}}) {
    for (const bool as_large_as_adamw : {true, false}) {
      Weights net;
      const at::Tensor p = net.add("weight", {rows, columns});
      const auto optimizer = net.made({.learning_rate = 0.1,
                                       .momentum = 0.9,
                                       .weight_decay = 0.5,
                                       .as_large_as_adamw = as_large_as_adamw});
      const double factor = as_large_as_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                              : std::sqrt(std::max(1.0, 1.0 * rows / columns));
      at::Tensor expected = p.detach().to(at::kDouble), momentum = at::zeros_like(expected);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        p.mutable_grad() = normal({rows, columns}, 10 + step);
        momentum = 0.9 * momentum + p.grad();
        expected = 0.95 * expected - 0.1 * factor * newton_schulz(p.grad() + 0.9 * momentum);
        optimizer->step();
        EXPECT_TRUE(at::allclose(p.to(at::kDouble), expected, 1e-4, 1e-5)) << rows << step;
      }
      EXPECT_EQ(optimizer->steps(p), 3);
      const auto states = optimizer->state(p);
      ASSERT_EQ(states.size(), 1U);
      EXPECT_TRUE(at::allclose(states.at("momentum_buffer").to(at::kDouble), momentum.flatten()));
      EXPECT_EQ(optimizer->state_bytes(p), rows * columns * 4);
    }
  }
}

TEST(Muon, LeavesVectorsEmbeddingAndHeadToAdamW) {
  Weights net;
  const at::Tensor matrix = net.add("layer", {4, 6});
  const std::vector<at::Tensor> others = {net.add("embed_tokens", {9, 4}),
                                          net.add("lm_head", {7, 4}), net.add("bias", {5}),
                                          net.add("kernel", {3, 2, 2})};
  std::vector<at::Tensor> alone;
  for (const at::Tensor& p : others) alone.push_back(p.detach().clone().requires_grad_());
  const AdamWOptions options{.learning_rate = 0.02, .beta1 = 0.8, .weight_decay = 0.3};
  const auto both = net.made({}, options), reference = adamw(options)(alone);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    both->set_learning_rates({0.1, 0.04});
    reference->set_learning_rate(0.04);
    matrix.mutable_grad() = normal(matrix.sizes(), step);
    for (std::size_t i = 0; i < others.size(); ++i) {
      others[i].mutable_grad() = normal(others[i].sizes(), step);
      alone[i].mutable_grad() = others[i].grad();
    }
    both->step();
    reference->step();
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_TRUE(at::equal(others[i], alone[i])) << i;
    EXPECT_EQ(both->group_of(others[i]), 1U);
  }
  EXPECT_EQ(both->group_of(matrix), 0U);
  EXPECT_TRUE(both->needs_whole());
  EXPECT_FALSE(both->can_offload());
  const Optimizer::Settings settings = both->settings();
  EXPECT_EQ(settings.kind, "Muon");
  ASSERT_EQ(settings.groups.size(), 2U);
  EXPECT_EQ(settings.groups[0].at("learning_rate"), 0.1);
  EXPECT_EQ(settings.groups[1].at("beta1"), 0.8);
}

}  // namespace
}  // namespace zero::optim

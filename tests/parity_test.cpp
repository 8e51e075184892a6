// Every strategy and variant against chapter 00, to the last bit: gradients before the step,
// weights and moments after it. A new chapter is tested here without this file being touched.

#include <fmt/format.h>

#include <set>

#include <tests/parity_matrix/cells.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/parity.hpp>
#include <tests/support/ranks.hpp>

namespace zero::testing {
namespace {

// All modes on one set of forked ranks, each compared with plain DDP under the same options.
void expect_all_modes_identical(int world_size, const RunOptions& options) {
  on_ranks(world_size, [&](dist::Communicator& communicator) {
    const RunRecord reference = run_edge_case_model(communicator, "ddp", options);
    for (const std::string& mode : all_modes()) {
      expect_identical(run_edge_case_model(communicator, mode, options), reference, mode);
      if (communicator.rank() == 0) fill_cell(mode, world_size);
    }
  });
}

class Parity : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Parity, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(Parity, AdamW) { expect_all_modes_identical(GetParam(), {}); }

TEST_P(Parity, Sgd) { expect_all_modes_identical(GetParam(), {.optimizer = "sgd"}); }

TEST_P(Parity, ClippedGradients) {
  expect_all_modes_identical(GetParam(), {.steps = 3, .clip_norm = 0.05});
}

TEST_P(Parity, ClippedByTheLargestGradient) {
  expect_all_modes_identical(GetParam(),
                             {.steps = 3, .clip_norm = 0.02, .norm = optim::Norm::kInfinity});
}

TEST_P(Parity, AccumulatedLocally) {
  expect_all_modes_identical(GetParam(), {.steps = 2, .micro_batches = 3});
}

TEST_P(Parity, AccumulatedAfterReducingEach) {
  expect_all_modes_identical(
      GetParam(),
      {.steps = 2, .micro_batches = 3, .accumulation = train::Accumulation::kReduceEach});
}

class ParityFewRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParityFewRanks, ::testing::Values(2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(ParityFewRanks, OwnershipByCount) {
  expect_all_modes_identical(GetParam(), {.ownership = train::Ownership::kByCount});
}

TEST_P(ParityFewRanks, OwnershipByOffset) {
  expect_all_modes_identical(GetParam(), {.ownership = train::Ownership::kByOffset});
}

TEST_P(ParityFewRanks, ClippedByTheSumOfMagnitudes) {
  expect_all_modes_identical(GetParam(), {.steps = 3, .clip_norm = 0.5, .norm = optim::Norm::kL1});
}

TEST_P(ParityFewRanks, Maximize) {
  expect_all_modes_identical(GetParam(), {.optimizer = "adamw, maximize"});
}

TEST_P(ParityFewRanks, LibTorchsAdam) {
  expect_all_modes_identical(GetParam(), {.optimizer = "torch_adam"});
}

TEST_P(ParityFewRanks, LibTorchsSgd) {
  expect_all_modes_identical(GetParam(), {.optimizer = "torch_sgd"});
}

TEST_P(ParityFewRanks, LibTorchsAdamWWithAmsgrad) {
  expect_all_modes_identical(GetParam(), {.optimizer = "torch_amsgrad"});
}

TEST_P(ParityFewRanks, LibTorchsRmsprop) {
  expect_all_modes_identical(GetParam(), {.optimizer = "torch_rmsprop"});
}

TEST_P(ParityFewRanks, LibTorchsAdagrad) {
  expect_all_modes_identical(GetParam(), {.optimizer = "torch_adagrad"});
}

TEST_P(ParityFewRanks, RanksThatStartFromDifferentValues) {
  const RunOptions different{.same_seed = false};
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    const RunRecord reference = run_edge_case_model(communicator, "ddp", {});
    for (const std::string& mode : all_modes()) {
      expect_identical(run_edge_case_model(communicator, mode, different), reference, mode);
    }
  });
}

// What makes the comparisons above mean something.
TEST(ParityPremises, RanksDifferWeightsChangeAndUnusedOnesStay) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const RunRecord first = run_edge_case_model(communicator, "ddp", {.steps = 1});
    const RunRecord later = run_edge_case_model(communicator, "ddp", {.steps = 4});
    std::set<std::string> unchanged;
    for (const auto& [name, tensor] : later.tensors) {
      if (!name.starts_with("weight")) continue;
      for (const auto& [other_name, other] : first.tensors) {
        if (name == other_name && at::equal(tensor, other)) unchanged.insert(name);
      }
    }
    EXPECT_EQ(unchanged, (std::set<std::string>{"weight never", "weight frozen.weight",
                                                "weight layers.frozen.weight"}));
    std::set<std::string> with_moments;
    for (const auto& [name, tensor] : later.moments) with_moments.insert(name);
    EXPECT_FALSE(with_moments.contains("exp_avg never"));
    EXPECT_TRUE(with_moments.contains("exp_avg sometimes"));
  });
}

TEST(ParityPremises, AllWaysOfClippingClipAndDiffer) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const RunRecord l2 = run_edge_case_model(communicator, "ddp", {.steps = 3, .clip_norm = 0.05});
    const RunRecord largest = run_edge_case_model(
        communicator, "ddp", {.steps = 3, .clip_norm = 0.02, .norm = optim::Norm::kInfinity});
    const RunRecord sum = run_edge_case_model(
        communicator, "ddp", {.steps = 3, .clip_norm = 0.5, .norm = optim::Norm::kL1});
    for (const float norm : sum.norms) EXPECT_GT(norm, 0.5F);
    EXPECT_GT(sum.norms.front(), l2.norms.front());
    for (const float norm : l2.norms) EXPECT_GT(norm, 0.05F);
    for (const float norm : largest.norms) EXPECT_GT(norm, 0.02F);
    EXPECT_LT(largest.norms.front(), l2.norms.front());
  });
}

}  // namespace
}  // namespace zero::testing

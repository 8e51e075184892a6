// Every strategy and variant against chapter 00, to the last bit: gradients before the step,
// weights and moments after it. A new chapter is tested here without this file being touched.

#include <set>

#include <tests/parity_matrix/cells.hpp>
#include <tests/support/optimizers.hpp>
#include <tests/support/parity.hpp>

namespace zero::testing {
namespace {

// All modes on one set of forked ranks, each compared with plain DDP under the same options, whose
// ranks draw the same first values.
void expect_all_modes_identical(int world_size, const RunOptions& options) {
  RunOptions of_reference = options;
  of_reference.same_seed = true;
  on_ranks(world_size, [&](dist::Communicator& communicator) {
    const RunRecord reference = run_edge_case_model(communicator, "ddp", of_reference);
    for (const std::string& mode : all_modes()) {
      SCOPED_TRACE(mode);
      expect_identical(run_edge_case_model(communicator, mode, options), reference);
      if (communicator.rank() == 0) fill_cell(mode, world_size);
    }
  });
}

ZERO_TESTS_ON_RANKS(Parity, 1, 2, 3, 4, 8);

TEST_P(Parity, AdamW) { expect_all_modes_identical(GetParam(), {}); }

TEST_P(Parity, Sgd) {
  expect_all_modes_identical(GetParam(),
                             {.optimizer = optim::sgd({.learning_rate = 0.05, .momentum = 0.9})});
}

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

ZERO_TESTS_ON_RANKS(ParityFewRanks, 2, 3);

TEST_P(ParityFewRanks, OtherOwnersNormsOptimizersAndSeeds) {
  std::vector<RunOptions> all = {
      {.ownership = train::Ownership::kByCount},
      {.ownership = train::Ownership::kByOffset},
      {.steps = 3, .clip_norm = 0.5, .norm = optim::Norm::kL1},
      {.same_seed = false},
  };
  for (const OptimizerKind& kind : torch_kinds()) all.push_back({.optimizer = kind.make});
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_all_modes_identical(GetParam(), all[i]);
  }
}

// What makes the comparisons above mean something.
TEST(ParityPremises, RanksDifferWeightsChangeAndUnusedOnesStay) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const RunRecord first = run_edge_case_model(communicator, "ddp", {.steps = 1});
    const RunRecord later = run_edge_case_model(communicator, "ddp", {.steps = 4});
    std::set<std::string> unchanged;
    for (const auto& [name, tensor] : later.state) {
      if (!name.starts_with("parameter/")) continue;
      if (at::equal(tensor, first.state.at(name))) unchanged.insert(name);
    }
    EXPECT_EQ(unchanged, (std::set<std::string>{"parameter/never", "parameter/frozen.weight",
                                                "parameter/layers.frozen.weight"}));
    EXPECT_FALSE(later.state.at("exp_avg/never").any().item<bool>());
    EXPECT_TRUE(later.state.at("exp_avg/sometimes").any().item<bool>());
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

// Every strategy and variant of a chapter against chapter 00, to the last bit: gradients before the
// step, weights and moments after it. A new chapter is tested here without this file being touched.

#include <tests/parity_matrix/cells.hpp>
#include <tests/support/optimizers.hpp>
#include <tests/support/parity.hpp>

#include "own_modes.hpp"

namespace zero::testing {
namespace {

// The chapter's modes on one set of forked ranks, each compared with plain DDP under the same
// options, whose ranks draw the same first values.
void expect_like_chapter_00(int world_size, const RunOptions& options) {
  RunOptions of_reference = options;
  of_reference.same_seed = true;
  on_ranks(world_size, [&](dist::Communicator& communicator) {
    const RunRecord reference = run_edge_case_model(communicator, "ddp", of_reference);
    for (const std::string& mode : own_modes()) {
      SCOPED_TRACE(mode);
      expect_identical(run_edge_case_model(communicator, mode, options), reference);
      if (communicator.rank() == 0) fill_cell(mode, world_size);
    }
  });
}

ZERO_TESTS_ON_RANKS(Parity, 1, 2, 3, 4, 8);

TEST_P(Parity, AdamW) { expect_like_chapter_00(GetParam(), {}); }

TEST_P(Parity, Sgd) { expect_like_chapter_00(GetParam(), {.optimizer = sgd(0.05)}); }

TEST_P(Parity, ClippedGradients) {
  expect_like_chapter_00(GetParam(), {.steps = 3, .clip_norm = 0.05});
}

TEST_P(Parity, AccumulatedLocally) {
  expect_like_chapter_00(GetParam(), {.steps = 2, .micro_batches = 3});
}

TEST_P(Parity, AccumulatedAfterReducingEach) {
  expect_like_chapter_00(
      GetParam(),
      {.steps = 2, .micro_batches = 3, .accumulation = train::Accumulation::kReduceEach});
}

ZERO_TESTS_ON_RANKS(ParityFewRanks, 2, 3);

TEST_P(ParityFewRanks, OtherOptimizersAndSeeds) {
  std::vector<RunOptions> all = {
      {.same_seed = false},
  };
  for (const OptimizerKind& kind : torch_kinds()) all.push_back({.optimizer = kind.make});
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_like_chapter_00(GetParam(), all[i]);
  }
}

}  // namespace
}  // namespace zero::testing

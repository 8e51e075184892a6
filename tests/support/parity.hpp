#pragma once

#include <string>
#include <vector>

#include <zero/optim/adamw.hpp>

#include "whole_state.hpp"

namespace zero::testing {

/// How a run of the edge-case model differs from the plainest one.
struct RunOptions {
  optim::OptimizerFactory optimizer = optim::adamw({.learning_rate = 0.01});
  int steps = 4;
  int micro_batches = 1;
  double clip_norm = 0;
  train::Accumulation accumulation = train::Accumulation::kLocal;
  at::Device device = at::kCPU;
  bool same_seed = true;  ///< false: ranks draw different first values, which rank 0's must replace
};

/// Everything that two strategies must agree on, whole on every rank.
struct RunRecord {
  std::vector<std::vector<at::Tensor>> gradients;  ///< of each step, as the optimizer sees them
  WholeState state;                                ///< at the end
  std::vector<double> losses;
  std::vector<float> norms;
};

/// Trains the edge-case model as one rank.
RunRecord run_edge_case_model(dist::Communicator& communicator, const std::string& mode,
                              const RunOptions& options = {});

/// Fails the test where `record` differs from `reference` in a single bit.
void expect_identical(const RunRecord& record, const RunRecord& reference);

}  // namespace zero::testing

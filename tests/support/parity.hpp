#pragma once

#include <map>
#include <string>
#include <vector>

#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

namespace zero::testing {

/// How a run of the edge-case model differs from the plainest one.
struct RunOptions {
  std::string optimizer = "adamw";  ///< or "adamw, maximize", "sgd", "torch_adam", "torch_sgd"
  int steps = 4;
  int micro_batches = 1;
  double clip_norm = 0;
  optim::Norm norm = optim::Norm::kL2;
  train::Ownership ownership = train::Ownership::kBySize;
  train::Accumulation accumulation = train::Accumulation::kLocal;
  bool same_seed = true;  ///< false: ranks draw different first values, which rank 0's must replace
};

/// Everything that two strategies must agree on, whole on every rank. Names are "<kind>
/// <parameter>".
struct RunRecord {
  std::vector<std::pair<std::string, at::Tensor>>
      tensors;  ///< gradients of each step, then weights
  std::vector<std::pair<std::string, at::Tensor>> moments;  ///< of parameters that this rank owns
  /// First element, in the flattened parameter, of tensors above that are a piece of one.
  std::map<std::string, std::int64_t> begins;
  std::vector<double> losses;
  std::vector<float> norms;
};

/// Trains the edge-case model as one rank. Gradients are recorded after the reduction and before
/// the step, by their owners (undefined elsewhere); weights and losses after the last step.
RunRecord run_edge_case_model(dist::Communicator& communicator, const std::string& mode,
                              const RunOptions& options = {});

/// GoogleTest expectations that `record` equals `reference` to the last bit wherever both have a
/// tensor, and that every weight of the reference is there.
void expect_identical(const RunRecord& record, const RunRecord& reference, const std::string& what);

}  // namespace zero::testing

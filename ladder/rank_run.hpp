#pragma once

#include <string>
#include <zero/distributed/communicator.hpp>
#include <zero/report/ladder_report.hpp>

#include "options.hpp"

namespace zero::ladder {

/// What one rank brings back from one mode, as JSON: its row, losses, and what has to be compared
/// over ranks.
struct RankResult {
  report::RankRow row;
  double formula_mib = 0;
  std::int64_t predicted_traffic = 0;  ///< bytes of gradients and parameters in a step, by formula
  std::vector<double> losses;
  bool every_tensor_changed = false;
  std::string batch_digest;     ///< of the first local batch
  std::string gradient_digest;  ///< of the first local gradients, before they were reduced
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
};

std::string to_text(const RankResult& result);
RankResult from_text(const std::string& text);

/// Trains `options.steps` steps under `mode` as one rank of `communicator`; called by all ranks.
/// Rank 0 shows progress if `speaks`.
RankResult run_rank(dist::Communicator& communicator, const std::string& mode,
                    const Options& options, bool speaks = true);

}  // namespace zero::ladder

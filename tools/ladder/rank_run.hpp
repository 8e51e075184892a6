#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include <zero/distributed/communicator.hpp>

#include "ladder_report.hpp"
#include "options.hpp"

namespace zero::ladder {

/// What one rank brings back from one mode: its row, losses, and what has to be compared over
/// ranks.
struct RankResult {
  RankRow row;
  /// Bytes that it sends in a step by formula, on the data axis and on that of the pipeline.
  /// Control messages are not counted.
  std::int64_t predicted_traffic = 0, predicted_pipeline_traffic = 0;
  std::vector<double> losses;
  /// Mean losses of what is held out: [{"step": steps done, "loss": ...}, ...].
  base::Json validation = base::Json::array();
  double loss_scale = 1;           ///< of the last step
  std::int64_t skipped_steps = 0;  ///< left out because a gradient overflowed
  bool every_tensor_changed = false;
  std::string batch_digest;     ///< of the first local batch
  std::string gradient_digest;  ///< of the first local gradients, before they were reduced
  base::Json memory_timeline;   ///< of the last step, as plots::timeline_of_mode() gives it, where
                                ///< asked for
};

/// As JSON, to bring it to the process that reports.
std::string to_text(const RankResult& result);
RankResult from_text(const std::string& text);

/// Trains `options.steps` steps under `mode` as one rank of `communicator`; called by all ranks.
/// Progress is shown under the name `label`, or not at all where that is empty.
RankResult run_rank(dist::Communicator& communicator, const std::string& mode,
                    const Options& options, const std::string& label);

}  // namespace zero::ladder

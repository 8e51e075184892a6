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
  std::int64_t predicted_traffic = 0;  ///< bytes of gradients and parameters in a step, by formula
  std::vector<double> losses;
  /// Mean losses of what is held out: [{"step": steps done, "loss": ...}, ...].
  base::Json validation = base::Json::array();
  double loss_scale = 1;           ///< of the last step
  std::int64_t skipped_steps = 0;  ///< left out because a gradient overflowed
  bool every_tensor_changed = false;
  std::string batch_digest;     ///< of the first local batch
  std::string gradient_digest;  ///< of the first local gradients, before they were reduced
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  base::Json memory_timeline;  ///< of the last step, as plots::timeline_of_mode() gives it, where
                               ///< asked for
};

/// As JSON, to bring it to the process that reports.
std::string to_text(const RankResult& result);
RankResult from_text(const std::string& text);

/// Trains `options.steps` steps under `mode` as one rank of `communicator`; called by all ranks.
/// Progress is shown under the name `label`, or not at all where that is empty.
RankResult run_rank(dist::Communicator& communicator, const std::string& mode,
                    const Options& options, const std::string& label);

/// Compares the folder of the weights with the model and says what will be read, converted and
/// drawn by seed. Builds the model without storage: only to be called in a process that may use
/// tensors. @throws zero::Error where the folder's tensors are not those of the model.
std::string describe_weights(const Options& options);

}  // namespace zero::ladder

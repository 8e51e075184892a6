#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include <zero/distributed/communicator.hpp>
#include <zero/optim/optimizer.hpp>

#include "ladder_report.hpp"
#include "options.hpp"

namespace zero::ladder {

/// What one rank brings back from one mode, as JSON: its row, losses, and what has to be compared
/// over ranks.
struct RankResult {
  ladder::RankRow row;
  double formula_mib = 0;
  std::int64_t predicted_traffic = 0;  ///< bytes of gradients and parameters in a step, by formula
  std::vector<double> losses;
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

std::string to_text(const RankResult& result);
RankResult from_text(const std::string& text);

/// What a run does beside training and measuring.
struct RunExtras {
  bool show_progress = true;      ///< rank 0 shows progress
  bool traces = false;            ///< every rank records its last step, where a trace was asked for
  bool memory_timelines = false;  ///< rank 0 records its memory along the last step
  bool saves = false;             ///< the trained model is saved, where a folder was named
  std::string label;              ///< what progress calls the run; empty: by its mode
};

/// AdamW as the command line wants it, with fp32 master weights where parameters have 2 bytes.
optim::OptimizerFactory optimizer_of(const Options& options);

/// Trains `options.steps` steps under `mode` as one rank of `communicator`; called by all ranks.
RankResult run_rank(dist::Communicator& communicator, const std::string& mode,
                    const Options& options, const RunExtras& extras);

/// Compares the folder of the weights with the model and says what will be read, converted and
/// drawn by seed. Builds the model without storage: only to be called in a process that may use
/// tensors. @throws zero::Error where the folder's tensors are not those of the model.
std::string describe_weights(const Options& options);

}  // namespace zero::ladder

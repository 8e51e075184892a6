#pragma once

#include <string>

#include <tools/support/json.hpp>
#include <zero/distributed/communicator.hpp>

#include "options.hpp"

namespace zero::ladder {

/// Trains `options.steps` steps under `mode` as one rank of `communicator`; called by all ranks.
/// Progress is shown under the name `label`, or not at all if that is empty. check_mesh() has
/// accepted the options. What it brings back, to compare over ranks:
///   "row"              the rank's row of the report (ladder_report.hpp)
///   "losses"           of every step
///   "every_tensor_changed"
///   "batch_digest"     of the first local batch
///   "gradient_digest"  of the first local gradients, before they were reduced
tools::Json run_rank(dist::Communicator& communicator, const std::string& mode,
                     const Options& options, const std::string& label);

/// Compares the folder of the weights with the model and says what will be read, converted and
/// drawn by seed. Builds the model without storage: only to be called in a process that may use
/// tensors. @throws zero::Error if the folder's tensors are not those of the model.
std::string describe_weights(const Options& options);

}  // namespace zero::ladder

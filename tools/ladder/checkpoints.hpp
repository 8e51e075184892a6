#pragma once

#include <optional>
#include <string>

#include <zero/io/checkpoint.hpp>

#include "options.hpp"
#include "samples.hpp"

namespace zero::ladder {

/// The note of a checkpoint with the fingerprint of the data set.
inline constexpr const char* kDataNote = "data";

/// Returns the info of the checkpoint in `--resume`, or nothing for a run from the start. Checks,
/// before ranks start, that the run can resume: batches are the same, steps are left, and
/// `--checkpoint` holds no checkpoint of another run. Uses no tensor.
/// @throws zero::Error that says what to change.
std::optional<io::CheckpointInfo> check_checkpoints(const Options& options, const Samples& samples);

/// "goes on after step 4 of …, saved by zero1 on 2 ranks", and a changed learning rate.
std::string describe(const io::CheckpointInfo& saved, const Options& options);

}  // namespace zero::ladder

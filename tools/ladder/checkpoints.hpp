#pragma once

#include <optional>
#include <string>

#include <tools/ladder/data/sampler.hpp>
#include <zero/io/checkpoint.hpp>

#include "options.hpp"

namespace zero::ladder {

/// The note of a checkpoint with the fingerprint of the data set.
inline constexpr const char* kDataNote = "data";

/// Notes where the data stand: the step and the sampler's position.
void write_position(const data::DistributedSampler& sampler, io::CheckpointInfo& info);

/// Sets the sampler to what write_position() noted. @throws zero::Error if the run would go on with
/// other batches: `fingerprint` is that of the data set.
void resume_position(const io::CheckpointInfo& saved, const std::string& fingerprint,
                     data::DistributedSampler& sampler);

/// Returns the info of the checkpoint in `--resume`, or nothing for a run from the start. Checks,
/// before ranks start, that steps are left, and that `--checkpoint` holds no checkpoint of another
/// run. Uses no tensor.
/// @throws zero::Error that says what to change.
std::optional<io::CheckpointInfo> check_checkpoints(const Options& options);

}  // namespace zero::ladder

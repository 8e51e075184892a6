#pragma once

#include <optional>
#include <string>

#include <tools/ladder/data/sampler.hpp>
#include <zero/io/checkpoint.hpp>

#include "options.hpp"
#include "samples.hpp"

namespace zero::ladder {

/// The note of a checkpoint with the fingerprint of the data set.
inline constexpr const char* kDataNote = "data";

/// Notes where the data stand: the step and the sampler's position.
void write_position(const data::DistributedSampler& sampler, io::CheckpointInfo& info);

/// What write_position() noted. A number that is missing is 0, which no dataset_size is.
data::DistributedSampler::State position_in(const io::CheckpointInfo& saved);

/// Returns the info of the checkpoint in `--resume`, or nothing for a run from the start. Checks,
/// before ranks start, that the run can resume: batches are the same, steps are left, and
/// `--checkpoint` holds no checkpoint of another run. Uses no tensor.
/// @throws zero::Error that says what to change.
std::optional<io::CheckpointInfo> check_checkpoints(const Options& options, const Samples& samples);

/// "goes on after step 4 of …, saved by zero1 on 2 ranks", and a changed learning rate.
std::string describe(const io::CheckpointInfo& saved, const Options& options);

}  // namespace zero::ladder

#pragma once

#include <optional>
#include <string>

#include <zero/data/sampler.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/train/loop/trainer.hpp>

#include "options.hpp"
#include "samples.hpp"

namespace zero::ladder {

/// Returns the info of the checkpoint in `options.resume`, or nothing for a run from the start.
/// Checks, before ranks start, that the run can resume: batches are the same, steps are left, and
/// `options.checkpoint` holds no checkpoint of another run. Uses no tensor.
/// @throws zero::Error that says what to change.
std::optional<io::CheckpointInfo> check_checkpoints(const Options& options, const Samples& samples);

/// "goes on after step 4 of …, saved by zero1 on 2 ranks", and a changed learning rate.
std::string describe(const io::CheckpointInfo& saved, const Options& options);

/// Loads the checkpoint in `options.resume` into `strategy`, and restores the position of `sampler`
/// and the loss scale of `trainer`, if it uses one. Called by all ranks. Does nothing for a run
/// from the start.
void resume(train::Strategy& strategy, train::Trainer& trainer, data::DistributedSampler& sampler,
            const Options& options);

/// "never", "at the end" or "every 100 steps".
std::string when_saved(const Options& options);

/// Writes a checkpoint if the step that has just ended is the last, or a multiple of
/// `options.checkpoint_every`. Called by all ranks after every step.
void save_if_due(train::Strategy& strategy, train::Trainer& trainer,
                 const data::DistributedSampler& sampler, const std::string& mode,
                 const Options& options, const data::Dataset& dataset);

}  // namespace zero::ladder

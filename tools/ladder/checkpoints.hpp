#pragma once

#include <optional>
#include <string>

#include <zero/data/sampler.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/train/trainer.hpp>

#include "options.hpp"
#include "samples.hpp"

namespace zero::ladder {

/// What the checkpoint says that `options.resume` names; nothing for a run from the start. Looks,
/// before any rank is started, whether the run can go on: with the same batches, with steps left to
/// take, and with a place for its own checkpoints that holds none of another run. Uses no tensor.
/// @throws zero::Error with what would be right.
std::optional<io::CheckpointInfo> check_checkpoints(const Options& options, const Samples& samples);

/// "goes on after step 4 of …, saved by zero1 on 2 ranks", and what is not as it was.
std::string describe(const io::CheckpointInfo& saved, const Options& options);

/// Puts the checkpoint that `options.resume` names into `strategy`, and `sampler` where it stood.
/// Called by all ranks; nothing to do for a run from the start.
void resume(train::Strategy& strategy, data::DistributedSampler& sampler, const Options& options);

/// The loss scale of the run that goes on, where it has one.
void put_back_loss_scale(train::Trainer& trainer, const Options& options);

/// "never", "at the end" or "every 100 steps".
std::string when_kept(const Options& options);

/// Writes a checkpoint where one is due after the step that `sampler` has just given: every
/// `options.checkpoint_every` steps, and after the last. Called by all ranks after every step.
void keep(train::Strategy& strategy, train::Trainer& trainer,
          const data::DistributedSampler& sampler, const std::string& mode, const Options& options,
          const data::Dataset& dataset);

}  // namespace zero::ladder

#pragma once

#include <filesystem>

#include <zero/io/checkpoint_info.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

/// Writes a checkpoint to `folder` and replaces the one that is there. Called by all ranks, between
/// steps (after sync_parameters()), with the same `info`, on a folder that all of them see; blocks
/// until it is on the disk. Nothing is gathered: each rank writes its own part, and needs
/// safetensors::kScratchBytes. The ranks of a model that is split over a tensor or a pipeline
/// axis are those of all axes; the checkpoint is that of the whole model.
///
/// @throws zero::Error on every rank, with the reason of one of them, if the folder cannot be
/// written to or is full, it holds a manifest.json of something else, `info` differs between ranks,
/// a weight is infinite or NaN, or the optimizer's state cannot be saved. The earlier checkpoint
/// then stays whole.
void save_checkpoint(train::Strategy& strategy, const std::filesystem::path& folder,
                     const CheckpointInfo& info);

}  // namespace zero::io

#pragma once

#include <filesystem>

#include <zero/io/checkpoint_info.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

struct LoadOptions {
  /// Allows a checkpoint whose parameters have another dtype; values and states are converted.
  bool convert_dtype = false;
};

/// What the manifest in `folder` says of the run that saved it; no other file is looked at. Uses no
/// tensor and no other rank, so that a program can refuse a checkpoint before it trains.
/// @throws zero::Error where there is no manifest, or one that load_checkpoint() would refuse.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

/// Puts the checkpoint in `folder` into the model and the optimizer, on any number of ranks and
/// under any strategy; says where the run stood. Called by all ranks, between steps, on the same
/// model and kind of optimizer; blocks. Gradients are dropped.
///
/// At the world size and under the strategy that saved, the run goes on as if it had never
/// stopped, to the last bit. Under others every element, state and step count is exactly what it
/// was; sums over ranks may then round differently. At another world size buffers are those of the
/// same rank, or of rank 0 where there was none.
///
/// Each rank checks the SHA-256 of the files that it takes something from (ranks share those that
/// nobody does), and copies only the elements that it keeps. The optimizer's states are in memory
/// before the first parameter is touched.
///
/// @throws zero::Error on every rank, with the reason of one of them, before anything was changed:
/// no checkpoint there; a file is missing, cut short, altered or another run's; a format version
/// that is not known; another model or kind of optimizer; another dtype, unless `options` allow it;
/// ranks that see different checkpoints.
CheckpointInfo load_checkpoint(train::Strategy& strategy, const std::filesystem::path& folder,
                               const LoadOptions& options = {});

}  // namespace zero::io

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <zero/data/sampler.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/train/strategy.hpp>

/// Checkpoints of a training run, from which it can go on with other ranks or another chapter.
///
///     folder/
///       manifest.json                    what there is: names, shapes, who wrote which elements
///       step-000000012/
///         rank-00000-of-00002.safetensors
///         rank-00001-of-00002.safetensors
///
/// Each rank writes what it answers for: of every parameter the run of elements that it updates
/// (train::Strategy::piece), flat, as "parameter/NAME", and of the optimizer the states of these
/// elements as "exp_avg/NAME", "exp_avg_sq/NAME", in mixed precision "master/NAME" too. What
/// several ranks hold is written by the lowest of them, so under ddp rank 0 writes everything.
/// Buffers are each rank's own ("buffer/NAME").
///
/// manifest.json is the checkpoint: it names its step folder and holds the length and the SHA-256
/// of every file, and of itself. A new one takes its place by one rename after all files have
/// reached the disk, and what the old one named is removed after that. So whenever the program
/// dies, the folder holds one whole checkpoint, the old or the new; what was begun is removed by
/// the next save. One program at a time may save to a folder.
namespace zero::io {

/// Where a run stands, beside parameters and optimizer states. The same on all ranks.
struct CheckpointInfo {
  std::int64_t step = 0;                                   ///< optimizer steps so far, at least 0
  std::string mode;                                        ///< the strategy, for people to read
  std::optional<data::DistributedSampler::State> sampler;  ///< where the data stands
  std::string random;  ///< state of the caller's generators, in UTF-8, as the caller reads it back
  std::map<std::string, std::string> notes;  ///< what else the caller wants to find again, in UTF-8

  /// Filled by load_checkpoint(): the number of ranks that saved, and their optimizer's settings
  /// then. Not put back: the optimizer goes on with the settings that it was made with.
  int world_size = 0;
  optim::Optimizer::Settings optimizer;
};

struct LoadOptions {
  /// Allows a checkpoint whose parameters have another dtype; values and states are converted.
  bool convert_dtype = false;
};

/// Writes a checkpoint to `folder`, in place of the one that is there. Called by all ranks, between
/// steps (after sync_parameters()), with the same `info`, on a folder that all of them see; blocks
/// until it is on the disk. Nothing is gathered: each rank writes its own, and needs
/// io::kSafetensorsScratchBytes.
///
/// @throws zero::Error on every rank, with the reason of one of them, where the folder cannot be
/// written to or is full, it holds a manifest.json of something else, `info` differs between ranks,
/// a weight is infinite or NaN, or the optimizer's state cannot be saved. The earlier checkpoint is
/// whole then.
void save_checkpoint(train::Strategy& strategy, const std::filesystem::path& folder,
                     const CheckpointInfo& info);

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

#pragma once

#include <memory>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>

#include "offload_options.hpp"

namespace zero {

/// Stage 3 of chapter 05 with this rank's shards of the parameters in a file (ZeRO-Infinity,
/// Rajbhandari et al. 2021, section 5.1), under any optimizer. Each flat buffer has a slot there:
///
///     gather    slot --read--> this rank's part of the buffer --all-gather--> the whole buffer
///     update    slot --read--> shard --optimizer--> shard --write--> slot
///               while the next slot is read and the one before is written (optim::TileFile)
///
/// Weights, states, gradients and checkpoints have the bits of the same run in memory. At rest a
/// rank has no parameters but the two buffers of the file: as much as two of the largest slot. A
/// parameter never uses the bytes of the shard, because the shard has none while the unit is used.
///
/// In a step of m micro-batches with V/N bytes in the file, a rank reads V/N for each gather (2 m,
/// but m of the root, which stays whole from forward to backward) and for the update, and writes
/// V/N in the update. A gather blocks until this rank has read its part. Frozen parameters are only
/// gathered. What was read last is still there, and
/// is not read again if it is gathered next.
///
/// With each gather ranks tell each other whether a file has failed. Then all throw zero::Error
/// that names the rank, the folder and the slot, and whatever reads or updates weights throws it
/// again until a checkpoint is loaded. A load that finds the error itself fails, and the next one
/// succeeds.
///
/// `options`: at stage 3. `place`: a folder, and tile_bytes 0. Called by all ranks;
/// blocks. Throws zero::Error on all ranks if there is another stage, a mesh with more axes than
/// "data" (their ranks would not hear of a disk that fails), a model on a device, or no room in the
/// folder of one rank.
std::unique_ptr<ShardedDataParallel> make_parameters_in_file(train::StrategyArguments arguments,
                                                             const ShardingOptions& options,
                                                             const optim::OffloadOptions& place);

}  // namespace zero

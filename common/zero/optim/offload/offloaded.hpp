#pragma once

#include <zero/optim/offload/options.hpp>
#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Gives every optimizer that `optimizer` makes its states on a disk (ZeRO-Infinity, Rajbhandari et
/// al. 2021, section 5.2): moments, and master weights if it has them. Weights, states and
/// checkpoints have the same bits as without it.
///
/// The states of all parameters lie in tiles. A step reads a tile, updates its part of the
/// parameters, and writes it, while the next one is read and the one before is written. Resident,
/// charged to kOptimizer: two tiles, each with 4 KiB for its alignment, and one more in the first
/// step, while states are made. A step reads and writes each state once: AdamW 8 bytes and 8 for a
/// float32 parameter, with master weights 12 and 12 for a 2-byte parameter. Each tile is rounded up
/// to 4 KiB.
///
/// Tiles have checksums, and room on the disk is taken before anything is updated. An error in the
/// middle of a step leaves weights and states in part as before and in part updated. From then on
/// step() and state() throw, until load_state() has restored every parameter: load a checkpoint.
///
/// state() reads from the disk and returns copies. It goes around with_master_weights(); with
/// with_weight_average(), which reads all states in each step, it is refused.
///
/// @throws zero::Error if the folder cannot be written to, and for another optimizer than adamw(),
/// with or without with_master_weights().
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);

/// What an optimizer has moved; zeros if with_offload() did not make it.
OffloadTraffic offload_traffic(const Optimizer& optimizer);

/// Reads and writes all states once, as a step does, and changes nothing: to measure the disk. Does
/// nothing if with_offload() did not make it. @throws zero::Error if the disk fails.
void stream_offloaded(Optimizer& optimizer);

}  // namespace zero::optim

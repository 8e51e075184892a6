#pragma once

#include <zero/optim/optimizer.hpp>

#include "offload_options.hpp"

namespace zero::optim {

/// Gives every optimizer that `optimizer` makes its states elsewhere: moments, and master weights
/// if it has them. Weights, states and checkpoints have the same bits as without it.
///
/// If parameters are on a device, the host updates them (ZeRO-Offload, Ren et al. 2021, section
/// 4.1): gradients are copied to the host, where the optimizer has copies of the parameters, and
/// new values go back. For e bytes of a parameter, e and e cross the bus in a step, and the host
/// has 2 e in page-locked memory besides the states. Parameters go to the host before their first
/// update, after load_state(), and after they were written (their version counter tells). A value
/// written through data() is lost at the next step. On the CPU parameters are there already.
///
/// Without a folder the states are in the host's memory; `optimizer` may be any. With one they are
/// on a disk (ZeRO-Infinity, Rajbhandari et al. 2021, section 5.2), in tiles. A step reads a tile,
/// updates its part of the parameters, and writes it, while the next one is read and the one before
/// is written. In the host's memory, charged to kOptimizer: two tiles, each with 4 KiB for its
/// alignment, and one more in the first step, while states are made. A step reads and writes each
/// state once: AdamW 8 bytes and 8 for a float32 parameter, with master weights 12 and 12 for a
/// 2-byte parameter. Each tile is rounded up to 4 KiB.
///
/// Tiles have checksums, and room on the disk is taken before anything is updated. An error in a
/// step or in load_state() leaves weights in part as before and in part updated, and all states are
/// lost. From then on step() and state() throw, until load_state() has restored every parameter:
/// load a checkpoint.
///
/// state() of a disk returns copies; replace() and narrow() come before states are there, else they
/// throw. It goes around with_master_weights().
///
/// @throws zero::Error if the folder cannot be written to, and with one for another optimizer than
/// adamw(), with or without with_master_weights().
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);

}  // namespace zero::optim

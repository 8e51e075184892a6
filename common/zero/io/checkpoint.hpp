#pragma once

#include <zero/io/checkpoint_info.hpp>
#include <zero/io/load_checkpoint.hpp>
#include <zero/io/save_checkpoint.hpp>

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
namespace zero::io {}

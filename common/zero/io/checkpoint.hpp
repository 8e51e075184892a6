#pragma once

#include <zero/io/load_checkpoint.hpp>
#include <zero/io/save_checkpoint.hpp>

/// Checkpoints of a training run, from which it can resume on other ranks or under another chapter.
///
///     folder/
///       checkpoint.json                    names and checksums of the files, the state of the run
///       step-000000012/
///         rank-00000-of-00002.safetensors
///         rank-00001-of-00002.safetensors
///
/// Each rank writes what it owns: of every parameter the range of elements that it updates
/// (train::Placement::saved), flat, as "parameter/NAME", and the optimizer states of these
/// elements as "exp_avg/NAME", "exp_avg_sq/NAME", in mixed precision also "master/NAME". The
/// metadata of the file say where they lie in the whole. If several ranks hold the same elements,
/// the first of them writes them, so under ddp rank 0 writes everything. Every rank writes its own
/// buffers
/// ("buffer/NAME"). No rank has to know what others write; one that loads reads all headers.
///
/// checkpoint.json makes the checkpoint: it names its step folder and holds the length and the
/// SHA-256 of every file, and of itself. A new one replaces the old one by one rename after all
/// files have reached the disk. Then the files of the old checkpoint are removed. (If the folder
/// keeps several, the old one first gets a record of its own, step-000000012.json.) So whenever the
/// program dies, the folder holds one whole checkpoint, the old or the new. The next save removes
/// an unfinished one. Only one program at a time may save to a folder.
namespace zero::io {}

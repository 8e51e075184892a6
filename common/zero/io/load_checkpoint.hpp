#pragma once

#include <filesystem>

#include <zero/io/save_checkpoint.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

/// Reads what checkpoint.json in `folder`, or the record `folder` of an older checkpoint, says
/// about the run that saved it, and no other file. Uses no tensor and no other rank, so that a
/// program can refuse a checkpoint before it trains. @throws zero::Error if there is none, or one
/// that load_checkpoint() would refuse.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

/// Loads the checkpoint in `folder`, or the older one whose record `folder` is
/// (folder/step-000000012.json), into the model and the optimizer, on any numbers of ranks of a
/// data, a tensor and a pipeline axis, and under any strategy; returns the state of the run. Called
/// by all ranks of all axes, between steps, on the same model and kind of optimizer; blocks.
/// Gradients are dropped.
///
/// At the world size and under the strategy that saved, the run resumes as if it had never stopped,
/// to the last bit. Under others, every element, state and step count is exactly what it was, but
/// later sums over ranks may round differently. At another world size a rank gets the buffers of
/// the same rank, or of rank 0 if that rank did not exist.
///
/// Each rank checks the SHA-256 of its share of the files, reads the headers of all of them, and
/// copies only the elements that it keeps.
///
/// @throws zero::Error on every rank, with the reason of one of them, before anything has changed,
/// if there is no checkpoint; a file is missing, cut short, altered or from another run; elements
/// are in no file or in several; the format version is unknown; the model or the kind of optimizer
/// or a dtype differs; or ranks see different checkpoints. If a file cannot be read later, the
/// model is partly loaded, and trains again only after another load.
CheckpointInfo load_checkpoint(train::Strategy& strategy, const std::filesystem::path& folder);

}  // namespace zero::io

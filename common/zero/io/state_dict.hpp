#pragma once

#include <filesystem>

#include <zero/io/weights_fit.hpp>
#include <zero/io/whole_values.hpp>
#include <zero/safetensors/safetensors.hpp>

/// The weights of a model as tensors by name, without optimizer states. Names are those of the
/// module, of parameters first and then of buffers; a tied parameter is there once, under its first
/// name. safetensors::save() writes one to a file.
namespace zero::io {

/// Copies of all parameters, whole, and of the buffers (rank 0's on rank 0), on the host. Called by
/// all ranks, not while forward() or backward() runs; blocks. Ranks that do not get it return
/// nothing and hold at most one unit more than they own.
/// @throws zero::Error on all ranks if they ask for different `ranks`.
safetensors::NamedTensors state_dict(train::Strategy& strategy,
                                     WholeOn ranks = WholeOn::kFirstRank);

/// Gives the model the values of `weights`, a state_dict() as rank 0 has it: all ranks get those of
/// rank 0, buffers too, and what other ranks pass does not count. Values are converted to the
/// model's types. Moments of the optimizer stay; a float32 master weight becomes the written value.
/// Called by all ranks, between steps; blocks. A rank holds at most one unit more than it owns,
/// and 8 bytes for each element of one parameter. Returns which names were missing, so that these
/// tensors stay as they are, and which were left over; `allowed` of rank 0 says which may be: an
/// adapter has few names, and a model with a new head lacks some.
/// @throws zero::Error on all ranks, before anything is written, if another name is missing or not
/// the model's, or one is there twice, a shape or type does not fit, or a tensor has no values in
/// memory: it names them. Also if the model is split over a pipeline axis. If a value cannot be
/// read later, the model is partly loaded, and trains again only after a checkpoint (Strategy::
/// change_on_all_ranks()).
WeightsFit load_weights(train::Strategy& strategy, const safetensors::NamedTensors& weights,
                        const WeightsFit& allowed = {});
/// The same from a safetensors file, or a folder of transformers' (safetensors::Folder), that rank
/// 0 sees. @throws zero::Error also as safetensors::Folder, on all ranks.
WeightsFit load_weights(train::Strategy& strategy, const std::filesystem::path& path,
                        const WeightsFit& allowed = {});

}  // namespace zero::io

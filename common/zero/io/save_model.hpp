#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include <zero/train/strategy.hpp>

namespace zero::io {

/// Writes the model of `strategy` to `folder` as transformers' save_pretrained does for a model of
/// one file: `config` as config.json, and the parameters as model.safetensors in their own dtype, a
/// tied one once. Rank 0 writes, and makes the folder if there is none; other ranks need not see
/// it. Each file replaces an earlier one of its name when it is complete. Where an earlier model
/// lies in several files, they stay, but no reader looks at them beside a model.safetensors.
///
/// Parameters are made whole unit by unit, so a rank holds at most what it owns and the largest
/// unit, plus safetensors::kScratchBytes on rank 0. Called by all ranks, between steps; blocks
/// until the files are on the disk. If the model is split over a tensor or a pipeline axis, the
/// whole model is written, and a rank also holds one parameter of it whole; all ranks of all axes
/// call. The traffic counts as Purpose::kParameter.
///
/// @throws zero::Error on every rank, with rank 0's reason, if the folder cannot be written or is
/// full; its earlier contents then stay.
void save_model(train::Strategy& strategy, const nlohmann::json& config,
                const std::filesystem::path& folder);

}  // namespace zero::io

#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include <zero/safetensors/safetensors.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

/// Writes the model of `strategy` to `folder` in the layout of transformers' save_pretrained:
/// `config` as config.json, and the parameters as safetensors in their own dtype, a tied one once,
/// in files of at most `max_bytes` (see safetensors::FolderWriter). Rank 0 writes; other ranks
/// need not see the folder.
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
                const std::filesystem::path& folder,
                std::int64_t max_bytes = safetensors::FolderWriter::kDefaultMaxBytes);

}  // namespace zero::io

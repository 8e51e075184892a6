#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include <zero/io/safetensors.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

/// Writes the model of `strategy` to `folder` as transformers' save_pretrained lays it out:
/// `config` as config.json, and the parameters as safetensors in their own dtype, a tied one once,
/// in files of at most `max_bytes` (see io::SafetensorsFolderWriter). Rank 0 writes; other ranks
/// need not see the folder.
///
/// Parameters are made whole unit by unit, so no rank holds more than it owns and the largest unit,
/// plus io::kSafetensorsScratchBytes on rank 0. Called by all ranks, between steps; blocks until
/// the files are on the disk. The traffic counts as Purpose::kParameter.
///
/// @throws zero::Error on every rank, with rank 0's reason, where the folder cannot be written or
/// is full; what was in it before stays then.
void save_model(train::Strategy& strategy, const nlohmann::json& config,
                const std::filesystem::path& folder,
                std::int64_t max_bytes = io::SafetensorsFolderWriter::kDefaultMaxBytes);

}  // namespace zero::io

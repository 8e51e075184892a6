#pragma once

#include <filesystem>

#include <zero/train/strategy.hpp>

/// Whose checkpoints a folder has, in this process. Called on rank 0.
namespace zero::io {

/// From now on the folder belongs to the model of `strategy` as long as that lives: others would
/// remove its checkpoints. @throws zero::Error if it belongs to another model that lives.
void hold_folder(const std::filesystem::path& folder, const train::Strategy& strategy);

/// @throws zero::Error if the folder belongs to another model that lives, and one of its own to the
/// model of `strategy`: with equal shapes nothing else would notice that they are mixed up.
void verify_not_of_another(const std::filesystem::path& folder, const train::Strategy& strategy);

}  // namespace zero::io

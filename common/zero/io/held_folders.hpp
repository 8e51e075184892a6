#pragma once

#include <filesystem>

#include <zero/train/strategy.hpp>

/// Whose checkpoints a folder has, in this process. Called on rank 0.
namespace zero::io {

/// Locks the folder for the life of this process, in which it belongs to the model of `strategy` as
/// long as that lives: others would remove its checkpoints. Makes the folder.
/// @throws zero::Error if another process has locked it, or another model that lives has it.
void hold_folder(const std::filesystem::path& folder, const train::Strategy& strategy);

/// @throws zero::Error if the folder belongs to another model that lives, and one of its own to the
/// model of `strategy`: with equal shapes nothing else would notice that they are mixed up.
void verify_not_of_another(const std::filesystem::path& folder, const train::Strategy& strategy);

}  // namespace zero::io

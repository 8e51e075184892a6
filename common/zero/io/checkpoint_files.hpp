#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// The files and folders of a checkpoint on this rank's disk. Every function throws zero::Error,
/// naming the path, if a system call fails.
namespace zero::io::checkpoint {

struct Fingerprint {
  std::int64_t bytes = 0;
  std::string sha256;  ///< 64 hexadecimal digits
};

/// Reads a whole file, which must not be empty.
Fingerprint fingerprint(const std::filesystem::path& path);

/// Makes a new, empty folder for a step in `folder`, and `folder` too if need be; returns its name:
/// "step-000000012", or "step-000000012.1" if that is taken.
std::string make_step_folder(const std::filesystem::path& folder, std::int64_t step);

/// "rank-00000-of-00002.safetensors"
std::string rank_file_name(int rank, int world_size);

/// Removes what checkpoints left in `folder`: step folders except `keep`, and unfinished manifests.
/// Files of other names stay, and so does a step folder that has one. What cannot be removed stays
/// too: nothing reads it.
void remove_step_folders(const std::filesystem::path& folder, const std::string& keep);

/// The same for the files of one step folder, and the folder.
void remove_step_folder(const std::filesystem::path& step_folder);

}  // namespace zero::io::checkpoint

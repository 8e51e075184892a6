#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

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

/// The manifest of the checkpoint at `place`: this file, or manifest.json in this folder.
std::filesystem::path manifest_at(const std::filesystem::path& place);

/// The manifest that the checkpoint in `step_folder` has beside a newer one: "step-000000012.json"
std::string older_manifest_name(const std::string& step_folder);

/// The step folders in `folder` that have such a manifest, the last written first.
std::vector<std::string> older_checkpoints(const std::filesystem::path& folder);

/// Removes what checkpoints left in `folder`: step folders except those in `keep` with their
/// manifests, first the manifest, and unfinished manifests. Files of other names stay, and so does
/// a step folder that has one. What cannot be removed stays too: nothing reads it.
void remove_step_folders(const std::filesystem::path& folder, const std::set<std::string>& keep);

/// The same for the files of one step folder, and the folder.
void remove_step_folder(const std::filesystem::path& step_folder);

}  // namespace zero::io::checkpoint

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <zero/io/checkpoint_record.hpp>
#include <zero/safetensors/file.hpp>

/// The files and folders of a checkpoint on this rank's disk. Every function throws zero::Error,
/// naming the path, if a system call fails.
namespace zero::io::checkpoint {

/// The length and the SHA-256 of a file, which must not be empty.
SavedFile fingerprint(const std::filesystem::path& path);

/// The files of a checkpoint, in the order of its record.
std::vector<safetensors::File> open_files(const std::filesystem::path& step_folder,
                                          const Record& record);

/// Makes a new, empty folder for a step in `folder`, and `folder` too if need be; returns its name:
/// "step-000000012", or "step-000000012.1" if that is taken.
std::string make_step_folder(const std::filesystem::path& folder, std::int64_t step);

/// "rank-00000-of-00002.safetensors"
std::string rank_file_name(int rank, int world_size);

/// The record of the checkpoint at `place`: this file, or checkpoint.json in this folder.
std::filesystem::path record_at(const std::filesystem::path& place);

/// The record that the checkpoint in `step_folder` has beside a newer one: "step-000000012.json"
std::string older_record_name(const std::string& step_folder);

/// After a save: removes what checkpoints left in `folder`, except the one in step folder `newest`
/// and the `keep` - 1 whose records were written last. Of the others the record goes first.
/// Unfinished records go too. Files of other names stay, and so does a step folder that has one.
/// What cannot be removed stays: nothing reads it.
void remove_older(const std::filesystem::path& folder, const std::string& newest, int keep);

/// The same for the files of one step folder, and the folder.
void remove_step_folder(const std::filesystem::path& step_folder);

}  // namespace zero::io::checkpoint

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <zero/io/save_checkpoint.hpp>

/// checkpoint.json, which makes a checkpoint of the files that it names. Nothing here touches a
/// file.
namespace zero::io::checkpoint {

inline constexpr int kVersion = 2;
inline constexpr const char* kFormat = "zero checkpoint";
inline constexpr const char* kRecordFile = "checkpoint.json";

struct SavedFile {
  std::string name;  ///< in the step folder
  std::int64_t bytes = 0;
  std::string sha256;  ///< 64 hexadecimal digits
};

struct Record {
  std::string folder;            ///< of the files, beside the record
  std::vector<SavedFile> files;  ///< in the order of their ranks
  CheckpointInfo info;           ///< world_size and optimizer filled in
};

/// Throws zero::Error for an impossible step.
void check_info(const CheckpointInfo& info);

/// The text of checkpoint.json, which ends with a checksum of itself.
std::string to_text(const Record& record);
/// The inverse. @throws zero::Error, beginning with `path`, for a text that to_text() did not write
/// to the last byte, of another version, or with numbers and names that no run has.
Record record_from(const std::string& text, const std::string& path);

}  // namespace zero::io::checkpoint

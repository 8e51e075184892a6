#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace zero::base {

/// A file of known size that appears under its name only when publish() is called. It is written
/// under a temporary name, ".NAME.PROCESS.COUNT", in the same folder; only a program that is killed
/// leaves that file behind.
///
/// Every function throws zero::Error, naming the file and the system's reason, if the system
/// refuses.
class AtomicFile {
 public:
  /// Creates the temporary file and reserves `size` bytes of disk, all zeros. The folder must
  /// exist.
  AtomicFile(const std::filesystem::path& path, std::int64_t size);
  /// Removes the temporary file unless it was published.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Writes `size` bytes at `offset`.
  void write(const void* data, std::int64_t size, std::int64_t offset);

  /// Blocks until all bytes are on the disk. No write may follow.
  void complete();

  /// Renames the completed file to its name, replacing any file there, and syncs the folder to
  /// disk.
  void publish();

 private:
  explicit AtomicFile(const std::filesystem::path& path);
  [[noreturn]] void fail(const char* step, int code) const;
  void reserve(std::int64_t size);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
  bool published_ = false;
};

/// Flushes the names in `folder` to the disk. Throws zero::Error if the system refuses.
void sync_folder(const std::filesystem::path& folder);

/// Writes `contents` to `path`, completely or not at all: first to a temporary file beside it,
/// which is then renamed. Makes the folder if there is none. An existing file does not change until
/// the new one is complete. Blocks until the bytes are on the disk. Throws zero::Error, naming the
/// path and the system's reason, if that fails.
void write_file(const std::filesystem::path& path, std::string_view contents);

/// Throws zero::Error if write_file(path) would, as far as can be known in advance: for programs to
/// call before minutes of work. Leaves nothing behind, neither file nor folder.
void check_writable(const std::filesystem::path& path);

}  // namespace zero::base

#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <zero/base/sha256.hpp>

namespace zero::base {

/// A file mapped into memory, read only, as long as this object lives.
class MappedFile {
 public:
  /// Throws zero::Error for a file that cannot be opened, is empty or not a regular file. The
  /// message begins with `what`, which names the file.
  MappedFile(const std::filesystem::path& path, const std::string& what);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Tells the system that `part` (of bytes()) will be read from its first byte to its last.
  void read_in_order(std::string_view part) const;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

  /// Adds `part` (of bytes()) to `hash`. Drops its pages as forget() does.
  void add_to(Sha256& hash, std::string_view part) const;

  /// The SHA-256 of all bytes, hexadecimal.
  std::string sha256() const;

  /// Drops pages of `part` (of bytes()) from the resident set, so that reading a large file does
  /// not fill the memory. They stay in the system's cache and return when read again.
  void forget(std::string_view part) const;

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// All bytes of a file. @throws zero::Error as MappedFile.
std::string read_file(const std::filesystem::path& path, const std::string& what);

}  // namespace zero::base

#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace zero::base {

/// A file mapped into memory, read only, until this object goes.
class MappedFile {
 public:
  /// Throws zero::Error for a file that cannot be opened, is empty or no regular file. The message
  /// begins with `what`, which names the file.
  MappedFile(const std::filesystem::path& path, const std::string& what);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Tells the system that the bytes will be read from the first to the last.
  void read_in_order() const;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

  /// Takes the pages of some of bytes() out of the resident set. They stay in the system's cache,
  /// and come back if they are read again. So a pass over a large file does not fill the memory.
  void forget(std::string_view part) const;

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace zero::base

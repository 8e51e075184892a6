#pragma once

#include <cstdint>
#include <filesystem>

namespace zero::optim {

/// Where states are that are not in the memory of the parameters, and how they are read and
/// written.
struct OffloadOptions {
  /// Empty: in the host's memory. Otherwise a folder on the disk. Each rank has a file there
  /// without a name, which the system removes when the run ends, however it ends. So runs may share
  /// a folder, and leave nothing in it.
  std::filesystem::path folder = {};
  /// Bytes that are read, updated and written together; rounded up to 4 KiB. A rank has two tiles
  /// in memory.
  std::int64_t tile_bytes = std::int64_t{16} << 20;
  /// Whether to say on stderr if the file cannot be read and written past the system's cache.
  bool says_how = true;
};

}  // namespace zero::optim

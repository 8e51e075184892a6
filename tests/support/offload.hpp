#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace zero::testing {

/// Where this process can reach its last file of offloaded states in `folder`, which has no name;
/// empty if there is none.
inline std::string offloaded_file(const std::filesystem::path& folder) {
  std::string last;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(entry, gone).string();
    if (file.starts_with(folder.string() + "/zero-offload-")) last = entry.path().string();
  }
  return last;
}

/// Writes 4 bytes over those at `offset` of that file.
inline void spoil_offloaded_file(const std::filesystem::path& folder, std::int64_t offset) {
  const int file = ::open(offloaded_file(folder).c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(::pwrite(file, "\x7f\x7e\x7d\x7c", 4, offset), 4);
  ::close(file);
}

/// Leaves the first `bytes` of that file.
inline void cut_offloaded_file(const std::filesystem::path& folder, std::int64_t bytes) {
  EXPECT_EQ(::truncate(offloaded_file(folder).c_str(), bytes), 0);
}

}  // namespace zero::testing

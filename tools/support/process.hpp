#pragma once

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

/// What the operating system counts of this process.
namespace zero::tools {

/// The field of /proc/self/status whose line starts with `key`, in bytes.
inline std::int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    std::int64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

/// The resident set in bytes, with memory mapped outside LibTorch, and its high-water mark.
inline std::int64_t resident_set_bytes() { return status_bytes("VmRSS:"); }
inline std::int64_t resident_set_peak_bytes() { return status_bytes("VmHWM:"); }

}  // namespace zero::tools

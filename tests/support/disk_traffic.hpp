#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace zero::testing {

/// The bytes that the system moves between this process and disks, beside those that its files
/// count, in several steps. Files must be read and written past the cache. The file system notes
/// times and places of files as well, in blocks of its own, but not in every step.
class DiskTraffic {
 public:
  void begin_step() {
    read_ = of_system("read_bytes:");
    written_ = of_system("write_bytes:");
  }
  /// What the files have counted since begin_step().
  void end_step(std::int64_t read, std::int64_t written) {
    more_read_.push_back(of_system("read_bytes:") - read_ - read);
    more_written_.push_back(of_system("write_bytes:") - written_ - written);
  }
  /// In no step less, and in one nothing more.
  void expect_only_what_is_counted() const {
    for (const auto& more : {more_read_, more_written_}) {
      ASSERT_FALSE(more.empty());
      EXPECT_EQ(std::ranges::min(more), 0) << ::testing::PrintToString(more);
    }
  }

 private:
  static std::int64_t of_system(const std::string& key) {
    std::ifstream io("/proc/self/io");
    std::string word;
    std::int64_t bytes = 0;
    while (io >> word >> bytes && word != key) {
    }
    return bytes;
  }

  std::int64_t read_ = 0, written_ = 0;
  std::vector<std::int64_t> more_read_, more_written_;
};

}  // namespace zero::testing

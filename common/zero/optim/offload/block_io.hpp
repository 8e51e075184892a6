#pragma once

// Private to zero/optim/offload.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zero::optim {

/// A part of a buffer. First its bytes are written to the file, then others are read into it; 0
/// bytes: not that.
struct Block {
  char* data = nullptr;
  std::int64_t write_bytes = 0;
  std::int64_t write_to = 0;  ///< offset in the file
  std::int64_t read_bytes = 0;
  std::int64_t read_from = 0;
};

/// Moves blocks between memory and a file while the program computes. Of one thread.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  /// Starts to move `blocks`, at most kMostBlocks, and returns. Blocks move in any order; the write
  /// of each ends before its read begins. Call finish() before the next start().
  virtual void start(const std::vector<Block>& blocks) = 0;
  /// Blocks until nothing moves any more. Returns the first thing that went wrong, or "".
  virtual std::string finish() = 0;

  static constexpr std::size_t kMostBlocks = 1024;
};

/// What went wrong if `done` is not `bytes`: the system's reason, if it is below 0, as -errno.
std::string io_error(bool writes, std::int64_t bytes, std::int64_t done);

}  // namespace zero::optim

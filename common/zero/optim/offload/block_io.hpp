#pragma once

// Private to zero/optim/offload.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
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

/// Moves blocks between memory and a file while the program computes, by pwrite() and pread() on
/// four threads. To be called from one thread.
class BlockIo {
 public:
  explicit BlockIo(int file) : file_(file) {}
  ~BlockIo() { finish(); }
  BlockIo(const BlockIo&) = delete;
  BlockIo& operator=(const BlockIo&) = delete;

  /// Starts to move `blocks` and returns. Blocks move in any order; the write of each ends before
  /// its read begins. Call finish() before the next start().
  void start(std::vector<Block> blocks);
  /// Blocks until nothing moves any more. Returns the first thing that went wrong, or "".
  std::string finish();

 private:
  std::string move_some();

  int file_;
  std::vector<Block> blocks_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::future<std::string>> threads_;
};

}  // namespace zero::optim

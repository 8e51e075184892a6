#pragma once

// Private to common/zero/distributed: memory of one rank that the others of its host can read.

#include <cstddef>
#include <cstdint>
#include <map>

namespace zero::dist {

/// All that an arena can hold.
std::int64_t bytes_of_this_machine();

/// Memory in a file without a name, which other processes can map and which disappears with the
/// last of them, however that ends. It uses as much of the machine's memory as it holds data at a
/// time, and keeps a little of that for later data.
class SharedArena {
 public:
  /// Creates an arena of this process for up to `size` bytes, zeros at first. zero::Error if the
  /// system refuses.
  explicit SharedArena(std::int64_t size);
  /// Maps the arena that process `pid` has open as file `file`. zero::Error if the system refuses.
  SharedArena(int pid, int file, std::int64_t size);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// The file descriptor in this process.
  int file() const { return file_; }

  /// Copies `bytes` in; returns their offset, valid until free(). zero::Error if the arena holds as
  /// many bytes as the machine has memory.
  std::int64_t put(const void* data, std::int64_t bytes);
  void free(std::int64_t offset);
  std::byte* at(std::int64_t offset) const { return memory_ + offset; }

 private:
  void map();
  void give_back();

  int file_ = -1;
  std::byte* memory_ = nullptr;
  std::int64_t size_;         // in bytes, nearly all of it never touched
  std::int64_t touched_ = 0;  // bytes from the start that may have memory behind them
  std::map<std::int64_t, std::int64_t> used_;  // length of the data at each offset
};

}  // namespace zero::dist

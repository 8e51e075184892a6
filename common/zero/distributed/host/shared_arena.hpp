#pragma once

// Private to common/zero/distributed: memory of one rank that the others of its host can read.

#include <cstddef>
#include <cstdint>
#include <map>

namespace zero::dist {

/// Memory in a file without a name, which other processes can map too. It takes as many bytes of
/// the machine's memory as are in it at one time, and keeps a little of that for what comes next.
class SharedArena {
 public:
  /// An arena of this process's own. zero::Error where the system refuses.
  SharedArena();
  /// That of process `pid`, where it is called `file`. zero::Error where the system refuses.
  SharedArena(int pid, int file);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// The number under which this process has it open.
  int file() const { return file_; }

  /// Copies `bytes` in; gives the offset where they are until free(). zero::Error where as many
  /// bytes as the machine has are in already.
  std::int64_t put(const void* data, std::int64_t bytes);
  void free(std::int64_t offset);
  std::byte* at(std::int64_t offset) const { return memory_ + offset; }

 private:
  void map();
  void give_back();

  int file_ = -1;
  std::byte* memory_ = nullptr;
  std::int64_t size_ = 0;     // in bytes, nearly all of it never touched
  std::int64_t touched_ = 0;  // bytes from the start that may have memory behind them
  std::map<std::int64_t, std::int64_t> used_;  // bytes of what is at each offset
};

}  // namespace zero::dist

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include <zero/memory/accounting.hpp>

namespace zero::memory {

/// Memory of one process that the others of its machine can read in place: a file without a name,
/// which disappears with the last process that maps it, however that ends. It keeps freed memory
/// for later data, so that it uses as much of the machine's memory as it ever held data at a time.
/// It is on huge pages where the system can make them (MADV_COLLAPSE, Linux 6.1). A forked child
/// has no access to it.
class SharedArena final : public LargeBlocks {
 public:
  /// Creates an arena of this process for up to `size` bytes, zeros at first. zero::Error if the
  /// system refuses.
  explicit SharedArena(std::int64_t size = default_size());
  /// Maps the arena that process `pid` has open as file `file`, to read it, or to write it as well.
  /// zero::Error if the system refuses.
  SharedArena(int pid, int file, std::int64_t size = default_size(), bool writes = false);
  ~SharedArena() override;
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// The bytes of the machine's memory, at most 128 GiB: each rank maps those of all others.
  static std::int64_t default_size();

  /// The file descriptor in this process.
  int file() const { return file_; }

  /// Returns the offset of a block of `bytes`, uninitialised, at the start of a page, valid until
  /// free(); nothing if the arena would hold more than its size. Several threads may call both.
  std::optional<std::int64_t> allocate(std::int64_t bytes);
  /// Does nothing in a forked child: the memory is its parent's.
  void free(std::int64_t offset);
  /// False in a forked child.
  bool is_mine() const override;

  std::byte* at(std::int64_t offset) const { return memory_ + offset; }
  bool contains(const void* address) const override {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= memory_ && byte < memory_ + size_;
  }
  std::int64_t offset_of(const void* address) const {
    return static_cast<const std::byte*>(address) - memory_;
  }

  void* take(std::int64_t bytes) override {
    const auto offset = allocate(bytes);
    return offset ? at(*offset) : nullptr;
  }
  void give_back(const void* block) override { free(offset_of(block)); }

  /// These bytes of another process's arena no longer count as resident in this process, until it
  /// touches them again. Not for a few: it takes about as long as reading 10 KiB.
  void forget(std::int64_t offset, std::int64_t bytes) const;

 private:
  /// Maps `file`, which `step` returned.
  SharedArena(const char* step, int file, std::int64_t size, bool writes);
  void make_present(std::int64_t begin, std::int64_t end);
  void limit_unused();

  int file_;
  int process_;
  std::byte* memory_ = nullptr;
  std::int64_t size_;                          // in bytes, nearly all of it never touched
  std::mutex mutex_;                           // guards all below
  std::map<std::int64_t, std::int64_t> used_;  // length of the block at each offset
  std::vector<bool> present_;                  // huge pages with memory behind them
  std::set<std::int64_t> unused_;              // offsets of those that no block uses
  std::int64_t held_ = 0, most_held_ = 0;      // bytes of the blocks, now and ever
};

/// From now on the counting allocator (install()) takes large blocks from an arena, which this
/// returns, so that other ranks can read them in place. Earlier blocks stay where they are.
/// zero::Error if the system refuses. Calling it again does nothing else.
SharedArena& share_large_blocks();

}  // namespace zero::memory

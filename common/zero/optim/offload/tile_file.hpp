#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include <zero/optim/offload/options.hpp>

namespace zero::optim {

/// Tiles of bytes in a file without a name, each with a checksum in memory. Reads and writes past
/// the system's cache (O_DIRECT) where the file system allows it, block by block, by pread() and
/// pwrite() on four threads. Acts on this rank alone, and is called from one thread.
class TileFile {
 public:
  static constexpr std::int64_t kAlignment = 4096;  ///< of offsets, sizes and buffers, in bytes
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  /// @throws zero::Error, naming the folder, if a file cannot be made there.
  explicit TileFile(const OffloadOptions& options);
  ~TileFile();
  TileFile(const TileFile&) = delete;
  TileFile& operator=(const TileFile&) = delete;

  /// Room for a tile's bytes in memory (uint8), zeros, charged to kOptimizer.
  static at::Tensor make_buffer(std::int64_t bytes);
  /// What it takes of memory: it begins at an aligned address.
  static std::int64_t buffer_bytes(std::int64_t bytes) { return aligned(bytes) + kAlignment; }
  static std::int64_t aligned(std::int64_t bytes);

  std::int64_t tile_bytes() const { return tile_bytes_; }
  /// Takes room for this many tiles on the disk. @throws zero::Error if there is none.
  void reserve(std::size_t tiles);
  /// Forgets all tiles and gives their room back.
  void clear();

  /// Starts to write the first `bytes` of `buffer` as tile `write`, and then to read tile `read`,
  /// which was written before, into it; kNone: not that. Of each block the write ends before the
  /// read begins. Returns at once. The buffer is the file's until finish().
  void start(const at::Tensor& buffer, std::size_t write, std::int64_t bytes, std::size_t read);
  /// Blocks until what was started has ended; returns at once if nothing was. @throws zero::Error,
  /// naming the folder and the tile, if the disk fails, or if what was read is not what was
  /// written.
  void finish();
  /// The same without an error, when there is another.
  void give_up() noexcept;

  bool has(std::size_t tile) const { return tile < tiles_.size() && tiles_[tile].bytes > 0; }
  const OffloadTraffic& traffic() const { return traffic_; }
  /// Open for this process. For tests.
  int descriptor() const { return file_; }

 private:
  struct Tile {
    std::int64_t bytes = 0;  // as it was written; 0: it was not
    std::uint64_t checksum = 0;
  };
  std::int64_t offset(std::size_t tile) const {
    return static_cast<std::int64_t>(tile) * tile_bytes_;
  }
  std::int64_t bytes_of(std::size_t tile) const { return has(tile) ? tiles_[tile].bytes : 0; }
  std::string move_blocks(char* data);
  std::string wait();
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path folder_;
  std::int64_t tile_bytes_;
  std::int64_t block_bytes_;
  int file_;
  std::vector<Tile> tiles_;
  at::Tensor moving_;  // the buffer between start() and finish()
  std::size_t writing_ = kNone;
  std::size_t reading_ = kNone;
  std::atomic<std::int64_t> next_ = 0;             // in the buffer: where the next block begins
  std::vector<std::future<std::string>> threads_;  // each gives what went wrong, or ""
  OffloadTraffic traffic_;
};

}  // namespace zero::optim

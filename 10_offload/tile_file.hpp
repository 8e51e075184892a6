#pragma once

#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <zero/memory/charge.hpp>
#include <zero/optim/optimizer.hpp>

#include "offload_options.hpp"

namespace zero::optim {

/// Tiles in a file without a name, each with a checksum in memory, and two buffers in memory: while
/// a tile is updated in one, the tile before is written from the other, and then the next one is
/// read into it. A tile has `tile_bytes`, or as many as it is added with. Reads and writes past the
/// system's cache (O_DIRECT) where the file system allows it. Acts on this rank alone, and is
/// called from one thread.
///
/// All functions throw zero::Error, naming the folder and the tile, if the disk fails or is full,
/// or if what is read is not what was written. Then tiles may be as before or updated: forget() and
/// write all anew.
class TileFile {
 public:
  static constexpr std::int64_t kAlignment = 4096;  ///< of offsets, sizes and buffers, in bytes

  /// `what`: what the tiles are, for the accounts of memory and for messages.
  explicit TileFile(const OffloadOptions& options,
                    memory::Category what = memory::Category::kOptimizer);
  ~TileFile();
  TileFile(const TileFile&) = delete;
  TileFile& operator=(const TileFile&) = delete;

  static std::int64_t aligned(std::int64_t bytes);
  /// What the two buffers take of memory: each begins at an aligned address.
  std::int64_t resident_bytes() const { return 2 * (aligned(tile_bytes_) + kAlignment); }

  std::size_t size() const { return tiles_.size(); }
  /// Adds a tile, without bytes yet.
  void add() { add_of(tile_bytes_, 0); }
  /// Before the first call below: adds a tile of this many bytes.
  void add(std::int64_t bytes);
  /// Bytes that the last tile can still have.
  std::int64_t room() const { return tile_bytes_ - tiles_.back().bytes; }
  /// Gives the last tile more bytes, at most room(); returns where they begin.
  std::int64_t grow(std::int64_t bytes);

  /// Calls `update` for each of `tiles`, in order, with its bytes, to be changed in place. Blocks
  /// until all are written. Takes room on the disk for all tiles before the first update.
  using Update = std::function<void(std::size_t tile, const at::Tensor& bytes)>;
  void stream(const std::vector<std::size_t>& tiles, const Update& update);

  /// The bytes of one tile, until the next call; with `to_change` to be changed, which that call
  /// writes.
  at::Tensor read(std::size_t tile, bool to_change = false);
  /// The same to be changed or not: that call writes them if they have changed.
  at::Tensor lend(std::size_t tile);

  /// Forgets what was written, not who has which place.
  void forget();

  const OffloadTraffic& traffic() const { return traffic_; }
  /// Open for this process. For tests.
  int descriptor() const { return file_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Tile {
    std::int64_t begin;        // in the file
    std::int64_t bytes;        // that are in use
    std::int64_t written = 0;  // bytes in the file; 0: none
    std::uint64_t checksum = 0;
  };
  void add_of(std::int64_t room, std::int64_t bytes);
  void prepare();
  void keep_changes();
  void write(std::size_t tile, const at::Tensor& buffer);
  void fetch(std::size_t tile, const at::Tensor& buffer);
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path folder_;
  std::int64_t tile_bytes_;
  memory::Category what_;
  int file_;
  std::int64_t end_ = 0;       // of the last tile
  std::int64_t reserved_ = 0;  // bytes of the disk
  std::vector<Tile> tiles_;
  std::array<at::Tensor, 2> buffers_;
  std::size_t here_ = kNone;  // in the first buffer, between calls
  bool changed_ = false;
  bool is_lent_ = false;
  OffloadTraffic traffic_;
};

}  // namespace zero::optim

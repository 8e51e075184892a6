#pragma once

#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/optim/offload/tile_file.hpp>

namespace zero::optim {

/// Tiles on a disk, of which two are in memory. Acts on this rank alone. All functions throw as
/// TileFile does.
class TileStore {
 public:
  explicit TileStore(const OffloadOptions& options) : file_(options) {}

  /// Adds a tile, without bytes yet.
  void add() { bytes_.push_back(0); }
  /// Gives the last tile more bytes, at most room(); returns where they begin.
  std::int64_t grow(std::int64_t bytes);
  std::size_t size() const { return bytes_.size(); }
  std::int64_t room() const { return file_.tile_bytes() - bytes_.back(); }
  void clear();

  /// Calls `update` for each of `tiles`, in order, with its bytes, to be changed in place. While it
  /// runs, the next tile is read and the one before is written. Blocks until all are written. After
  /// an error some tiles are updated and some are not.
  using Update = std::function<void(std::size_t tile, const at::Tensor& bytes)>;
  void stream(const std::vector<std::size_t>& tiles, const Update& update);

  /// The bytes of one tile, until the next call; with `to_change` to be changed.
  at::Tensor read(std::size_t tile, bool to_change = false);

  /// Bytes of memory, once there is a tile.
  std::int64_t resident_bytes() const { return 2 * TileFile::buffer_bytes(file_.tile_bytes()); }
  const TileFile& file() const { return file_; }

 private:
  void make_buffers();
  void keep_changes();

  TileFile file_;
  std::vector<std::int64_t> bytes_;  // by tile
  std::array<at::Tensor, 2> buffers_;
  std::size_t here_ = TileFile::kNone;  // in the first buffer, between calls
  bool changed_ = false;
};

}  // namespace zero::optim

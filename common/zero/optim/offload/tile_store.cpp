#include <c10/util/ScopeExit.h>

#include <zero/optim/offload/tile_store.hpp>

namespace zero::optim {

std::int64_t TileStore::grow(std::int64_t bytes) {
  bytes_.back() += bytes;
  return bytes_.back() - bytes;
}

void TileStore::clear() {
  file_.clear();
  bytes_.clear();
  here_ = TileFile::kNone;
  changed_ = false;
}

void TileStore::stream(const std::vector<std::size_t>& tiles, const Update& update) {
  if (tiles.empty()) return;
  keep_changes();
  here_ = TileFile::kNone;
  make_buffers();
  const auto end = c10::make_scope_exit([this] { file_.give_up(); });
  const auto start = [&](std::size_t write, std::size_t read) {
    const auto tile = [&](std::size_t i) { return i < tiles.size() ? tiles[i] : TileFile::kNone; };
    const std::size_t written = tile(write);
    file_.start(buffers_[read % 2], written, written == TileFile::kNone ? 0 : bytes_[written],
                tile(read));
  };
  constexpr std::size_t kNone = TileFile::kNone;
  start(kNone, 0);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    file_.finish();  // this tile is here, the one before the last is written
    start(i == 0 ? kNone : i - 1, i + 1);
    update(tiles[i], buffers_[i % 2]);
  }
  file_.finish();
  start(tiles.size() - 1, tiles.size() + 1);
  file_.finish();
}

at::Tensor TileStore::read(std::size_t tile, bool to_change) {
  if (here_ != tile) {
    keep_changes();
    here_ = TileFile::kNone;
    make_buffers();
    if (file_.has(tile)) {
      file_.start(buffers_[0], TileFile::kNone, 0, tile);
      file_.finish();
    }
    here_ = tile;
  }
  changed_ = changed_ || to_change;
  return buffers_[0];
}

void TileStore::keep_changes() {
  if (!changed_) return;
  file_.start(buffers_[0], here_, bytes_[here_], TileFile::kNone);
  file_.finish();
  changed_ = false;  // after an error it is written again
}

void TileStore::make_buffers() {
  file_.reserve(bytes_.size());
  for (at::Tensor& buffer : buffers_) {
    if (!buffer.defined()) buffer = TileFile::make_buffer(file_.tile_bytes());
  }
}

}  // namespace zero::optim

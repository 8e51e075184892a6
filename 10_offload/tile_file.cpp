#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <system_error>
#include <utility>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/memory/accounting.hpp>

#include "tile_file.hpp"

namespace zero::optim {
namespace {

constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 30;  // the system moves up to 2 GiB

std::string reason(int code) { return std::generic_category().message(code); }

// Moves `bytes` by calls of `move`; "" if all are moved.
std::string problem(const char* what, std::int64_t bytes, const auto& move) {
  for (std::int64_t at = 0; at < bytes; at += kMostAtOnce) {
    const auto some = static_cast<std::size_t>(std::min(bytes - at, kMostAtOnce));
    const ssize_t moved = TEMP_FAILURE_RETRY(move(at, some));
    if (moved < 0) return reason(errno);
    if (static_cast<std::size_t>(moved) < some) {
      return fmt::format("{} of {} bytes were {}", at + moved, bytes, what);
    }
  }
  return "";
}

std::uint64_t checksum_of(const at::Tensor& buffer, std::int64_t bytes) {
  return XXH3_64bits(buffer.const_data_ptr(), static_cast<std::size_t>(bytes));
}

const char* name_of(memory::Category what) {
  return what == memory::Category::kParameters ? "parameters" : "optimizer states";
}

int file_in(const OffloadOptions& options, memory::Category what) {
  std::string path = options.folder / "zero-offload-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) {
    throw Error(fmt::format(
        "{} cannot be kept in {}: {}; offload needs a folder that exists and can be written to",
        name_of(what), options.folder.string(), reason(errno)));
  }
  ::unlink(path.c_str());
  return file;
}

}  // namespace

TileFile::TileFile(const OffloadOptions& options, memory::Category what)
    : folder_(options.folder),
      tile_bytes_(aligned(options.tile_bytes)),
      what_(what),
      file_(file_in(options, what)) {
  if (::fcntl(file_, F_SETFL, O_DIRECT) != 0 && options.says_how) {
    log_error(fmt::format("note: {} in {} are read and written through the system's cache",
                          name_of(what), folder_.string()));
  }
}

TileFile::~TileFile() { ::close(file_); }

std::int64_t TileFile::aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void TileFile::add_of(std::int64_t room, std::int64_t bytes) {
  tiles_.push_back({.begin = end_, .bytes = bytes});
  end_ += room;
}

void TileFile::add(std::int64_t bytes) {
  tile_bytes_ = std::max(tile_bytes_, aligned(bytes));
  add_of(aligned(bytes), bytes);
}

std::int64_t TileFile::grow(std::int64_t bytes) {
  return std::exchange(tiles_.back().bytes, tiles_.back().bytes + bytes);
}

void TileFile::stream(const std::vector<std::size_t>& tiles, const Update& update) {
  if (tiles.empty()) return;
  prepare();
  keep_changes();
  here_ = kNone;
  const std::size_t count = tiles.size();
  const auto buffer = [this](std::size_t i) -> const at::Tensor& { return buffers_[i % 2]; };
  std::future<void> moving;  // if an update throws, its end is waited for
  const auto start = [&](std::size_t i) {
    // Without a launch policy: if the system has no thread left, get() moves the tiles.
    moving = std::async([&, i] {
      if (i > 0) write(tiles[i - 1], buffer(i - 1));
      if (i + 1 < count) fetch(tiles[i + 1], buffer(i + 1));
    });
  };
  fetch(tiles[0], buffer(0));
  for (std::size_t i = 0; i < count; ++i) {
    start(i);
    update(tiles[i], buffer(i));
    moving.get();  // the tile before is written, the next one is here
  }
  write(tiles.back(), buffer(count - 1));
}

at::Tensor TileFile::read(std::size_t tile, bool to_change) {
  if (here_ != tile) {
    prepare();
    keep_changes();
    here_ = kNone;
    fetch(tile, buffers_[0]);
    here_ = tile;
  }
  changed_ = changed_ || to_change;
  return buffers_[0];
}

at::Tensor TileFile::lend(std::size_t tile) {
  const at::Tensor bytes = read(tile, /*to_change=*/true);
  is_lent_ = true;
  return bytes;
}

void TileFile::forget() {
  for (Tile& tile : tiles_) tile.written = 0;
  here_ = kNone;
  changed_ = is_lent_ = false;
}

void TileFile::prepare() {
  if (end_ > reserved_ && TEMP_FAILURE_RETRY(::fallocate(file_, 0, 0, end_)) != 0 &&
      errno != EOPNOTSUPP) {  // some file systems cannot: there each write may fail
    fail(fmt::format("{} bytes are needed there: {}", end_, reason(errno)));
  }
  reserved_ = end_;
  const memory::Charge charge(what_);
  for (at::Tensor& buffer : buffers_) {
    if (buffer.defined()) continue;
    const at::Tensor room = at::zeros({tile_bytes_ + kAlignment}, at::kByte);
    const auto address = reinterpret_cast<std::intptr_t>(room.const_data_ptr());
    buffer = room.narrow(0, aligned(address) - address, tile_bytes_);
  }
}

void TileFile::keep_changes() {
  if (!changed_) return;
  const Tile& tile = tiles_[here_];
  const bool same = is_lent_ && tile.written == aligned(tile.bytes) &&
                    checksum_of(buffers_[0], tile.written) == tile.checksum;
  if (!same) write(here_, buffers_[0]);
  changed_ = is_lent_ = false;
}

void TileFile::write(std::size_t tile, const at::Tensor& buffer) {
  Tile& to = tiles_[tile];
  to.written = aligned(to.bytes);
  const std::uint64_t checksum = checksum_of(buffer, to.written);
  const auto* const data = static_cast<const char*>(buffer.const_data_ptr());
  const std::string wrong = problem("written", to.written, [&](std::int64_t at, std::size_t some) {
    return ::pwrite(file_, data + at, some, to.begin + at);
  });
  if (!wrong.empty()) fail(fmt::format("tile {} could not be written: {}", tile, wrong));
  to.checksum = checksum;
  traffic_.written_bytes += to.written;
}

void TileFile::fetch(std::size_t tile, const at::Tensor& buffer) {
  const Tile& from = tiles_[tile];
  auto* const data = static_cast<char*>(buffer.mutable_data_ptr());
  const std::string wrong = problem("there", from.written, [&](std::int64_t at, std::size_t some) {
    return ::pread(file_, data + at, some, from.begin + at);
  });
  if (!wrong.empty()) fail(fmt::format("tile {} could not be read: {}", tile, wrong));
  traffic_.read_bytes += from.written;
  if (from.written > 0 && checksum_of(buffer, from.written) != from.checksum) {
    fail(fmt::format("tile {} has other bytes than were written: its checksum differs", tile));
  }
}

void TileFile::fail(const std::string& what) const {
  throw Error(fmt::format("{} in {}: {}", name_of(what_), folder_.string(), what));
}

}  // namespace zero::optim

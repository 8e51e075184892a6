#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/offload/tile_file.hpp>

namespace zero::optim {
namespace {

std::string reason(int code) { return std::generic_category().message(code); }

std::uint64_t checksum_of(const at::Tensor& buffer, std::int64_t bytes) {
  return XXH3_64bits(buffer.const_data_ptr(), static_cast<std::size_t>(bytes));
}

int file_in(const OffloadOptions& options) {
  std::string path = options.folder / "zero-offload-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) {
    throw Error(fmt::format(
        "{} cannot be kept in {}: {}; offload needs a folder that exists and can be written to",
        options.what, options.folder.string(), reason(errno)));
  }
  ::unlink(path.c_str());
  return file;
}

}  // namespace

TileFile::TileFile(const OffloadOptions& options)
    : what_(options.what),
      folder_(options.folder),
      tile_bytes_(aligned(options.tile_bytes)),
      block_bytes_(aligned(std::max<std::int64_t>(1, options.block_bytes))),
      file_(file_in(options)),
      io_(file_) {
  if (::fcntl(file_, F_SETFL, O_DIRECT) != 0 && options.says_how) {
    log_error(fmt::format("note: {} in {} are read and written through the system's cache", what_,
                          folder_.string()));
  }
}

TileFile::~TileFile() {
  give_up();
  ::close(file_);
}

at::Tensor TileFile::make_buffer(std::int64_t bytes) {
  const memory::Charge charge(memory::Category::kOptimizer);
  const at::Tensor room = at::zeros({buffer_bytes(bytes)}, at::kByte);
  const auto address = reinterpret_cast<std::intptr_t>(room.const_data_ptr());
  return room.narrow(0, aligned(address) - address, aligned(bytes));
}

std::int64_t TileFile::aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void TileFile::reserve(std::size_t tiles) {
  if (tiles <= tiles_.size()) return;
  int code = ::fallocate(file_, 0, 0, offset(tiles)) == 0 ? 0 : errno;
  if (code == EOPNOTSUPP) code = ::ftruncate(file_, offset(tiles)) == 0 ? 0 : errno;
  if (code != 0) fail(fmt::format("{} bytes are needed there: {}", offset(tiles), reason(code)));
  tiles_.resize(tiles);
}

void TileFile::clear() {
  give_up();
  tiles_.clear();
  if (::ftruncate(file_, 0) != 0) fail(reason(errno));
}

void TileFile::start(const at::Tensor& buffer, std::size_t write, std::int64_t bytes,
                     std::size_t read) {
  TORCH_INTERNAL_ASSERT(!moving_.defined(), "finish() comes before the next start()");
  const std::int64_t to_write = write == kNone ? 0 : aligned(bytes);
  const std::int64_t to_read = read == kNone ? 0 : tiles_[read].bytes;
  if (to_write > 0) tiles_[write] = {to_write, checksum_of(buffer, to_write)};
  std::vector<Block> blocks;
  for (std::int64_t at = 0; at < std::max(to_write, to_read); at += block_bytes_) {
    const auto part = [&](std::int64_t all) {
      return std::clamp<std::int64_t>(all - at, 0, block_bytes_);
    };
    blocks.push_back({static_cast<char*>(buffer.mutable_data_ptr()) + at, part(to_write),
                      to_write > 0 ? offset(write) + at : 0, part(to_read),
                      to_read > 0 ? offset(read) + at : 0});
  }
  moving_ = buffer;
  writing_ = write;
  reading_ = to_read > 0 ? read : kNone;
  traffic_.written_bytes += to_write;
  traffic_.read_bytes += to_read;
  io_.start(std::move(blocks));
}

void TileFile::finish() {
  if (!moving_.defined()) return;
  const std::string wrong = io_.finish();
  const at::Tensor buffer = std::exchange(moving_, at::Tensor());
  if (!wrong.empty()) {
    std::string text;
    if (writing_ != kNone) text += fmt::format("tile {} could not be written", writing_);
    if (reading_ != kNone) {
      text += fmt::format("{}tile {} could not be read", text.empty() ? "" : ", or ", reading_);
    }
    fail(fmt::format("{}: {}", text, wrong));
  }
  if (reading_ == kNone) return;
  const Tile& tile = tiles_[reading_];
  if (checksum_of(buffer, tile.bytes) != tile.checksum) {
    fail(fmt::format("tile {} has other bytes than were written: its checksum differs", reading_));
  }
}

bool TileFile::holds(std::size_t tile, const at::Tensor& buffer) const {
  return has(tile) && checksum_of(buffer, tiles_[tile].bytes) == tiles_[tile].checksum;
}

void TileFile::give_up() noexcept {
  if (moving_.defined()) io_.finish();
  moving_ = at::Tensor();
}

void TileFile::fail(const std::string& what) const {
  throw Error(fmt::format("{} in {}: {}", what_, folder_.string(), what));
}

}  // namespace zero::optim

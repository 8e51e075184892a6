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
#include <zero/base/system_call.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/offload/tile_file.hpp>

namespace zero::optim {
namespace {

constexpr int kThreads = 4;

std::string reason(int code) { return std::generic_category().message(code); }

// Of a move of `bytes`; "" if `move` moves them all.
std::string problem(const char* what, std::size_t bytes, const auto& move) {
  const ssize_t moved = base::uninterrupted(move);
  if (moved < 0) return reason(errno);
  if (static_cast<std::size_t>(moved) == bytes) return "";
  return fmt::format("{} of {} bytes were {}", moved, bytes, what);
}

std::uint64_t checksum_of(const at::Tensor& buffer, std::int64_t bytes) {
  return XXH3_64bits(buffer.const_data_ptr(), static_cast<std::size_t>(bytes));
}

int file_in(const OffloadOptions& options) {
  std::string path = options.folder / "zero-offload-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) {
    throw Error(fmt::format(
        "optimizer states cannot be kept in {}: {}; offload needs a folder that exists and can be "
        "written to",
        options.folder.string(), reason(errno)));
  }
  ::unlink(path.c_str());
  return file;
}

}  // namespace

TileFile::TileFile(const OffloadOptions& options)
    : folder_(options.folder),
      tile_bytes_(aligned(options.tile_bytes)),
      block_bytes_(aligned(std::max<std::int64_t>(1, options.block_bytes))),
      file_(file_in(options)) {
  if (::fcntl(file_, F_SETFL, O_DIRECT) != 0 && options.says_how) {
    log_error(
        fmt::format("note: optimizer states in {} are read and written through the system's cache",
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
  const auto code_of = [](const auto& call) { return base::uninterrupted(call) == 0 ? 0 : errno; };
  int code = code_of([&] { return ::fallocate(file_, 0, 0, offset(tiles)); });
  if (code == EOPNOTSUPP) code = code_of([&] { return ::ftruncate(file_, offset(tiles)); });
  if (code != 0) fail(fmt::format("{} bytes are needed there: {}", offset(tiles), reason(code)));
  tiles_.resize(tiles);
}

void TileFile::clear() {
  give_up();
  tiles_.clear();
  if (base::uninterrupted([&] { return ::ftruncate(file_, 0); }) != 0) fail(reason(errno));
}

void TileFile::start(const at::Tensor& buffer, std::size_t write, std::int64_t bytes,
                     std::size_t read) {
  TORCH_INTERNAL_ASSERT(!moving_.defined(), "finish() comes before the next start()");
  if (write != kNone) tiles_[write] = {aligned(bytes), checksum_of(buffer, aligned(bytes))};
  moving_ = buffer;
  writing_ = write;
  reading_ = has(read) ? read : kNone;
  traffic_.written_bytes += bytes_of(writing_);
  traffic_.read_bytes += bytes_of(reading_);
  next_ = 0;
  auto* const data = static_cast<char*>(buffer.mutable_data_ptr());
  // Without a launch policy: if the system has no thread left, wait() moves the blocks.
  for (int t = 0; t < kThreads; ++t) {
    threads_.push_back(std::async([this, data] { return move_blocks(data); }));
  }
}

std::string TileFile::move_blocks(char* data) {
  const std::int64_t written = bytes_of(writing_), read = bytes_of(reading_);
  std::string wrong;
  while (wrong.empty()) {
    const std::int64_t at = next_.fetch_add(block_bytes_);
    if (at >= std::max(written, read)) break;
    const auto of_block = [&](std::int64_t all) {
      return static_cast<std::size_t>(std::clamp<std::int64_t>(all - at, 0, block_bytes_));
    };
    if (const std::size_t out = of_block(written); out > 0) {
      wrong = problem("written", out,
                      [&] { return ::pwrite(file_, data + at, out, offset(writing_) + at); });
    }
    if (const std::size_t in = of_block(read); in > 0 && wrong.empty()) {
      wrong = problem("there", in,
                      [&] { return ::pread(file_, data + at, in, offset(reading_) + at); });
    }
  }
  return wrong;
}

std::string TileFile::wait() {
  std::string first;
  for (auto& thread : std::exchange(threads_, {})) {  // if one throws, the others end first
    std::string wrong = thread.get();
    if (first.empty()) first = std::move(wrong);
  }
  return first;
}

void TileFile::finish() {
  if (!moving_.defined()) return;
  const std::string wrong = wait();
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

void TileFile::give_up() noexcept {
  wait();
  moving_ = at::Tensor();
}

void TileFile::fail(const std::string& what) const {
  throw Error(fmt::format("optimizer states in {}: {}", folder_.string(), what));
}

}  // namespace zero::optim

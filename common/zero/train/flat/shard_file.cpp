#include <c10/util/ScopeExit.h>

#include <utility>

#include <zero/memory/storage.hpp>
#include <zero/train/flat/shard_file.hpp>

namespace zero::train {
namespace {

constexpr std::size_t kTile = 0;
constexpr std::size_t kNone = optim::TileFile::kNone;
constexpr const char* kInFile =
    "this shard of parameters is in a file (offload_parameters): call Strategy::bring_shard() "
    "before reading it";

optim::OffloadOptions of_one_tile(optim::OffloadOptions options, std::int64_t bytes) {
  options.tile_bytes = bytes;
  options.what = "parameters";
  return options;
}

}  // namespace

ShardFile::ShardFile(optim::OffloadOptions options, std::int64_t shard_bytes,
                     memory::StoragePool& pool)
    : file_(of_one_tile(std::move(options), shard_bytes)),
      pool_(pool),
      bytes_(memory::without_storage({file_.tile_bytes()}, at::kByte)),
      room_(
          memory::without_storage({optim::TileFile::buffer_bytes(file_.tile_bytes())}, at::kByte)) {
  file_.reserve(kTile + 1);
  take_memory();
  memory::borrow_storage(bytes_, buffer_.zero_());
}

void ShardFile::take_memory() {
  pool_.allocate(room_, memory::Category::kParameters);
  const auto address = reinterpret_cast<std::intptr_t>(room_.const_data_ptr());
  buffer_ = room_.narrow(0, optim::TileFile::aligned(address) - address, bytes_.numel());
}

void ShardFile::read_ahead() {
  if (buffer_.defined()) return;
  take_memory();
  file_.start(buffer_, kNone, 0, kTile);
}

void ShardFile::bring() {
  if (is_here()) return;
  read_ahead();
  memory::borrow_storage(bytes_, buffer_);
  is_wrong_ = true;
  file_.finish();
  is_wrong_ = false;
}

void ShardFile::leave() {
  if (is_here() && (is_wrong_ || !file_.holds(kTile, buffer_))) write_behind();
  finish();
}

void ShardFile::write_behind() {
  memory::release_storage(bytes_, kInFile);
  file_.start(buffer_, kTile, bytes_.numel(), kNone);
}

void ShardFile::finish() {
  const auto end = c10::make_scope_exit([this] { drop(); });
  file_.finish();
}

void ShardFile::drop() noexcept {
  file_.give_up();
  if (!buffer_.defined()) return;
  memory::release_storage(bytes_, kInFile);
  buffer_.reset();
  pool_.release(room_);
}

}  // namespace zero::train

#pragma once

#include <torch/types.h>

#include <cstdint>

#include <zero/memory/storage_pool.hpp>
#include <zero/optim/offload/tile_file.hpp>

namespace zero::train {

/// A rank's shards of the parameters of one unit, in a file without a name (ZeRO-Infinity,
/// Rajbhandari et al. 2021, section 5.1). All are views of one tensor, which has bytes from bring()
/// to leave() or write_behind(). An access in between throws c10::Error. Acts on this rank alone.
///
/// In memory they take bytes() and 4 KiB for its alignment, from read_ahead() to leave(), or to
/// finish() after write_behind(). Each read and each write moves bytes(): the shards, rounded up to
/// 4 KiB.
class ShardFile {
 public:
  /// Takes the room on the disk; the bytes are in memory, zeros, until leave(). `pool`: where
  /// memory comes from; must outlive this object. @throws zero::Error if there is no file or no
  /// room.
  ShardFile(optim::OffloadOptions options, std::int64_t shard_bytes, memory::StoragePool& pool);
  ~ShardFile() { file_.give_up(); }
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  /// [shard_bytes, rounded up], uint8. Make views of it once; they stay valid.
  const at::Tensor& bytes() const { return bytes_; }

  /// Starts to read, unless they are in memory or on their way.
  void read_ahead();
  /// Blocks until the bytes are in memory; reads them unless they are there. @throws zero::Error if
  /// the disk fails; there are bytes then, but not those: call drop() or write all of them.
  void bring();
  /// Gives the memory back. Before that writes what has changed, by the checksum, or everything if
  /// it could not be read, and blocks.
  /// @throws zero::Error if the disk fails.
  void leave();
  /// Starts to write. The bytes are the file's until finish().
  void write_behind();
  /// Blocks until nothing moves, and gives the memory back. @throws zero::Error if the disk fails.
  void finish();
  /// Gives the memory back without a write.
  void drop() noexcept;

  const optim::OffloadTraffic& traffic() const { return file_.traffic(); }

 private:
  bool is_here() const { return memory::has_storage(bytes_); }
  void take_memory();

  optim::TileFile file_;   // of one tile
  bool is_wrong_ = false;  // what is in memory was not read as it was written
  memory::StoragePool& pool_;
  at::Tensor bytes_;   // borrows those of buffer_
  at::Tensor room_;    // gets its bytes from the pool
  at::Tensor buffer_;  // the aligned part of room_; undefined: nothing in memory
};

}  // namespace zero::train

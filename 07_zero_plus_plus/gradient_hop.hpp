#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/memory/storage_pool.hpp>

#include "shard_blocks.hpp"

namespace zero {

/// A hop of qgZ: an all-to-all of quantized shards among the ranks of a group. Then each rank adds
/// up what has arrived.
class GradientHop {
 public:
  /// A shard that a rank gets.
  struct Piece {
    int owner;           ///< which of all ranks owns the shard; sets its blocks
    std::int64_t index;  ///< of the shard in the values: it begins at index * blocks.shard()
  };
  /// `pieces`: by rank of `group`, equally many for each. `group`, `blocks` and `pool` must outlive
  /// this object.
  GradientHop(dist::Communicator& group, std::vector<std::vector<Piece>> pieces,
              const ShardBlocks& blocks, memory::StoragePool& pool)
      : group_(group), pieces_(std::move(pieces)), blocks_(blocks), pool_(pool) {}

  /// What travels: packed pieces for all ranks, and from all ranks (uint8, from the pool, charged
  /// to memory::Category::kCommunication).
  struct Exchange {
    at::Tensor sent;
    at::Tensor arrived;
    dist::Work work;
    bool is_finite = true;  ///< false if this rank has sent a value that is infinite or NaN
  };
  /// Quantizes `values` (any of quantization's types) and starts to send them.
  Exchange start(const at::Tensor& values) const;
  /// Fills `sum` (float32, elements()) with (r0 + r1) + r2 + … of what has arrived: every element
  /// in the order of the group's ranks, whichever rank adds it up.
  void add_up(const at::Tensor& arrived, const at::Tensor& sum) const;

  /// Elements of this rank's pieces.
  std::int64_t elements() const { return pieces_of_a_rank() * blocks_.shard(); }
  std::int64_t sent_bytes() const { return (group_.size() - 1) * message_bytes(); }

 private:
  std::int64_t pieces_of_a_rank() const { return std::ssize(pieces_.front()); }
  std::int64_t message_bytes() const { return pieces_of_a_rank() * blocks_.packed_bytes(); }
  at::Tensor buffer(const at::Tensor& values) const;

  dist::Communicator& group_;
  std::vector<std::vector<Piece>> pieces_;
  const ShardBlocks& blocks_;
  memory::StoragePool& pool_;
};

}  // namespace zero

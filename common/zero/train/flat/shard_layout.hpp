#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::train {

/// Where some tensors lie in one flat buffer, and how that buffer is cut into equal shards, one per
/// rank. All quantities are elements, never bytes.
///
///     tensor:   |    0    |pad|  1  |pad|      2      |pad|
///     buffer:   |---------------|---------------|---------|pad|
///     shard:           0               1               2
///
/// Every tensor begins at a multiple of kAlignment elements, and every shard is a multiple of it.
/// So a vector instruction that handles many elements at once has the same neighbours in a shard as
/// in the whole tensor, and the same remainder at a tensor's end: the optimizer rounds alike.
/// Nothing needs to be divisible by the world size; padding fills up.
class ShardLayout {
 public:
  /// 64 elements: a whole number of steps of every vectorised loop of LibTorch (16 or 32), and 256
  /// bytes in float32, so that views of a buffer are as well aligned as tensors of their own.
  static constexpr std::int64_t kAlignment = 64;

  /// `sizes`: elements of each tensor; 0 is allowed.
  ShardLayout(std::vector<std::int64_t> sizes, int world_size);

  int world_size() const { return world_size_; }
  std::size_t tensors() const { return sizes_.size(); }
  std::int64_t size(std::size_t tensor) const { return sizes_[tensor]; }
  /// First element of a tensor in the buffer.
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }
  /// Elements of a shard: the same on every rank.
  std::int64_t shard() const { return shard_; }
  /// Elements of the whole buffer: world size times shard.
  std::int64_t total() const { return shard_ * world_size_; }
  /// Elements of the buffer that belong to no tensor.
  std::int64_t padding() const { return total() - elements_; }

  /// The part of a tensor that lies in the shard of a rank.
  struct Range {
    std::int64_t begin = 0;     ///< first element, in the tensor
    std::int64_t in_shard = 0;  ///< where that is in the shard
    std::int64_t size = 0;      ///< elements; 0 if nothing of the tensor is there
  };
  Range range(std::size_t tensor, int rank) const;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> offsets_;
  int world_size_;
  std::int64_t elements_ = 0;
  std::int64_t shard_ = 0;
};

}  // namespace zero::train

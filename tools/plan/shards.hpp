#pragma once

#include <cstdint>

#include "model.hpp"

/// Split tensors by formula: what padding adds to the model states of chapters 04 and 05.
namespace zero::plan {

/// Which parameters lie in one buffer.
enum class Grouping {
  kUnit,    ///< those of a layer, and those of the root
  kTensor,  ///< each has its own
  kBucket,  ///< neighbours in a layer, or in the root, of at most kBucketElements (chapter 05)
};

/// 25 MiB of fp32. A tensor that is larger has its own buffer.
inline constexpr std::int64_t kBucketElements = (std::int64_t{25} << 20) / 4;

/// Elements of the padded buffers of a model that is split over some ranks (train::ShardLayout).
struct SplitSizes {
  std::int64_t total = 0;  ///< all buffers, whole; a rank's shards are total / world size
  std::int64_t root = 0;   ///< those of the root among them
  /// Of the embedding's buffer where it is the output head too, and grouping is by tensor: what is
  /// used twice in a forward. Else 0.
  std::int64_t used_twice = 0;
  /// Of averaged gradients that stay, on all ranks together: a shard that is padding only is not
  /// kept.
  std::int64_t gradients = 0;
};

/// Throws zero::Error for a model of which only the number of parameters is known, and for a world
/// size below 1.
SplitSizes split_sizes(const Model& model, int world_size, Grouping grouping);

}  // namespace zero::plan

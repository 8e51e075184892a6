#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace exercise_04d {

/// Elements of a shard of a tensor of `size` elements on `ranks` ranks.
inline std::int64_t shard_size(std::int64_t size, std::int64_t ranks) {
  return (size + ranks - 1) / ranks;
}

/// What a rank holds: its shard of each tensor and of its moments, shard_size() elements each. What
/// lies behind the end of the tensor is zero.
struct RankState {
  std::vector<at::Tensor> values, means, squares;  // by tensor
};

/// What a rank has saved.
struct File {
  /// Its shard of each tensor, without padding: other programs read these.
  std::vector<at::Tensor> values;
  /// The moments as the optimizer had them: one flat tensor of the shards of all tensors, one after
  /// the other, with their padding.
  at::Tensor means, squares;
};

/// How rank `rank` of `ranks` has saved its part of tensors of `sizes` elements.
inline File save(const RankState& state, const std::vector<std::int64_t>& sizes, int rank,
                 int ranks) {
  File file{{}, at::cat(state.means), at::cat(state.squares)};
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const std::int64_t shard = shard_size(sizes[t], ranks);
    const std::int64_t behind = std::max(sizes[t] - rank * shard, std::int64_t{0});
    file.values.push_back(state.values[t].narrow(0, 0, std::min(shard, behind)));
  }
  return file;
}

/// What an answer consists of.
struct Answer {
  /// What rank `rank` of `ranks` holds of the tensors in `files`, which another number of ranks may
  /// have saved: file r is that of rank r. `sizes`: elements of each tensor.
  RankState (*load)(const std::vector<File>& files, const std::vector<std::int64_t>& sizes,
                    int rank, int ranks);
};

}  // namespace exercise_04d

#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <zero/distributed/mesh.hpp>

namespace exercise_06b {

/// What an answer consists of.
struct Answer {
  /// Clips the averaged gradient of a model, of which this rank holds `shards` (float32; they may
  /// have 0 elements, their padding is zeros): if its L2 norm is larger than `max_norm`, scales it
  /// to `max_norm`, in place. Returns the norm before, the same on every rank. `mesh` has the axes
  /// "replica" and "shard"; ranks along "replica" hold the same shards. Called by all ranks;
  /// blocks.
  double (*clip_gradients)(const std::vector<at::Tensor>& shards, double max_norm,
                           const zero::dist::Mesh& mesh);
};

}  // namespace exercise_06b

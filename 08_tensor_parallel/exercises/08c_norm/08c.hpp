#pragma once

#include <torch/types.h>

#include <cmath>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace exercise_08c {

/// What a rank has of the averaged gradient of one parameter.
struct Gradient {
  at::Tensor shard;  ///< float32, this rank's shard on the data axis; it may have 0 elements
  bool is_split;     ///< true: the tensor ranks have parts of it; false: each has all of it
};

/// What an answer consists of.
struct Answer {
  /// Returns the L2 norm of the whole gradient of the model, the same on every rank of the mesh.
  /// `data` and `tensor` are the groups along the two axes that this rank is in. Called by all
  /// ranks with the same gradients in the same order; blocks.
  double (*gradient_norm)(const std::vector<Gradient>& gradients, zero::dist::Communicator& data,
                          zero::dist::Communicator& tensor);
};

}  // namespace exercise_08c

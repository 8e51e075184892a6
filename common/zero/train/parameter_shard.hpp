#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>

#include <zero/distributed/communicator.hpp>

namespace zero::train {

/// Consecutive elements of one parameter.
struct ParameterShard {
  /// The elements as the tensor that the optimizer updates; after finish_backward() its `.grad` is
  /// their averaged gradient. Undefined if this rank has none of the parameter.
  at::Tensor tensor;
  std::int64_t begin = 0;  ///< index of the first in the flattened parameter
};

/// Who updates what.
class Shards {
 public:
  /// The part of parameter `index` that this rank updates.
  virtual ParameterShard piece(std::size_t index) const = 0;
  /// Whether ranks own different parameters. The same answer on all ranks.
  virtual bool sharded() const = 0;
  /// Multiplies `gradients`, all that this rank updates with.
  virtual void scale(const std::vector<at::Tensor>& gradients, double factor) const = 0;
  /// The ranks among which model states are sharded: each element is updated by one of them. Ranks
  /// outside of the group hold copies.
  virtual dist::Communicator& shard_group() const = 0;

 protected:
  ~Shards() = default;
};

}  // namespace zero::train

#pragma once

#include <torch/types.h>

#include <zero/distributed/communicator.hpp>
#include <zero/train/costs.hpp>

namespace zero::train {

/// How the gradients of one flat buffer are averaged over all ranks. A chapter gives FlatParameters
/// one of its own in place of the reduce-scatter. There is one reduction of a buffer at a time:
///
///     reduce(full)            … wait()     the first part
///     reduce_rest(shard)      … wait()     what is left, if anything is
///
/// All ranks call both, and wait, in the same order.
class GradientTransfer {
 public:
  virtual ~GradientTransfer() = default;

  /// Starts to reduce `full` [N * shard], which must stay as it is until wait().
  virtual dist::Work reduce(const at::Tensor& full) = 0;
  /// Call after that wait(). After this one's wait(), `shard` [shard] is the average of this rank's
  /// shard over all ranks.
  virtual dist::Work reduce_rest(const at::Tensor& shard) = 0;
  /// What this rank sends in a reduction.
  virtual SentBytes sent() const = 0;
};

}  // namespace zero::train

#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/train/shard_layout.hpp>

namespace zero {

/// One tensor split over all ranks: the whole idea of stage 3 in a class that fits in one hand. The
/// strategies of this chapter do the same with many tensors at once.
class ShardedParameter {
 public:
  /// Called by all ranks. `whole`: the value, contiguous, the same on every rank; each keeps its
  /// own part of it only.
  ShardedParameter(const at::Tensor& whole, dist::Communicator& communicator);

  /// All ranks' shards as one tensor in the original shape. Called by all ranks; blocks. It stays
  /// whole until release(); a gather() before that gives the same tensor and sends nothing.
  at::Tensor gather();

  /// Gives the bytes of the whole tensor back; the shard stays. Sends nothing, but every rank must
  /// call it, because the next gather() sends. What gather() gave may not be read from here until
  /// then. Does nothing where the tensor is not whole.
  void release();

  /// The gradients of all ranks, averaged, of which this rank keeps its part: adds it to
  /// gradient(). Called by all ranks; blocks. `gradient`: the original shape.
  void reduce(const at::Tensor& gradient);

  /// [layout().shard()]: what an optimizer updates, and its averaged gradient (undefined before
  /// the first reduce()).
  at::Tensor& shard() { return shard_; }
  at::Tensor& gradient() { return gradient_; }
  const train::ShardLayout& layout() const { return layout_; }

 private:
  dist::Communicator& communicator_;
  std::vector<std::int64_t> sizes_;
  train::ShardLayout layout_;
  at::Tensor full_;     // [N * shard], without bytes unless it is whole
  bool whole_ = false;  // full_ has its bytes
  at::Tensor shard_;
  at::Tensor gradient_;
};

/// y = x W^T + b, with W and b split over all ranks and whole only while they are used.
class ShardedLinear {
 public:
  /// `weight` [outputs, inputs], `bias` [outputs]: the same on every rank.
  ShardedLinear(const at::Tensor& weight, const at::Tensor& bias, dist::Communicator& communicator);

  /// x [..., inputs] to [..., outputs]. Called by all ranks, and so is the backward that follows;
  /// both block. Every rank has its own x. This layer must live until that backward has run.
  at::Tensor forward(const at::Tensor& x);

  ShardedParameter& weight() { return weight_; }
  ShardedParameter& bias() { return bias_; }

 private:
  ShardedParameter weight_;
  ShardedParameter bias_;
};

}  // namespace zero

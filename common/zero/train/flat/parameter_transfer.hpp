#pragma once

#include <torch/types.h>

#include <cstdint>

#include <zero/distributed/communicator.hpp>
#include <zero/train/costs.hpp>

namespace zero::train {

/// How the parameters of one flat buffer get from the shards of all ranks into the buffer, at stage
/// 3. A chapter gives FlatParameters one of its own in place of the all-gather.
class ParameterTransfer {
 public:
  virtual ~ParameterTransfer() = default;

  /// Starts to fill all of `full` [N * shard] with the shards of all ranks; `shard` [shard] is this
  /// rank's. The values are there after wait_output(). Until wait(), do not write to `shard` and do
  /// not gather again. Called by all ranks in the same order.
  virtual dist::Work gather(const at::Tensor& full, const at::Tensor& shard) = 0;
  /// Whether the next gather() reads `shard`; the same on all ranks.
  virtual bool reads_shard() const { return true; }
  /// Whether the values that arrive are rounded. This rank then computes with what arrives of its
  /// own shard, too, so that all ranks compute with the same bits.
  virtual bool rounds() const { return false; }
  /// The program has written into `full`, which is whole and not rounded, on all ranks alike. Later
  /// gathers must bring what is there now.
  virtual void written(const at::Tensor& /*full*/) {}
  /// Bytes that it holds between gathers (memory::Category::kParameters).
  virtual std::int64_t held_bytes() const { return 0; }
  /// What this rank sends if the weights, as they are now, are gathered `gathers` times.
  virtual SentBytes sent(std::int64_t gathers) const = 0;
};

}  // namespace zero::train

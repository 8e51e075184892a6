#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>

#include <zero/distributed/communicator.hpp>
#include <zero/memory/storage_pool.hpp>
#include <zero/train/costs.hpp>
#include <zero/train/flat/shard_layout.hpp>

/// How the bytes of a flat buffer travel. Stages differ in what a rank keeps between steps, modes
/// of one stage in the transfers:
///
///     mode                      parameters at rest     gradients at rest     gathers over
///     stage 0                   whole                  whole
///     stage 1                   whole                  whole                 all, after the update
///     stage 2                   whole                  shard                 all, after the update
///     stage 3                   shard                  shard                 all, unit by unit
///     shard_size (HSDP)         as the stage, in a group of ranks            the group
///     secondary_shards (hpZ)    shard, and one of      shard                 all in forward, the
///                               the group's                                  group in backward
///     quantize_parameters       as without (qwZ), a codec around the gather
///     offload_parameters        shard, in a file       shard                 all, unit by unit
///
///     stage 0 reduces by an all-reduce; stages 1 to 3 by a reduce-scatter; HSDP by a
///     reduce-scatter in the group, and the rest by an all-reduce between groups;
///     quantize_gradients (qgZ) by two all-to-alls of integers
namespace zero::train {

/// How parameters get from the shards of all ranks into the whole buffer.
class ParameterTransfer {
 public:
  virtual ~ParameterTransfer() = default;

  /// Starts to fill all of `full` [N * shard] with the shards of all ranks; `shard` [shard] is this
  /// rank's. The values are there after wait_output(). Until wait(), do not write to `shard` and do
  /// not gather again. Called by all ranks in the same order.
  virtual dist::Work gather(const at::Tensor& full, const at::Tensor& shard) = 0;
  /// Whether gather() fills this rank's part of `full` too; otherwise the caller does.
  virtual bool fills_own_part() const { return true; }
  /// Whether the next gather() reads `shard`; the same on all ranks.
  virtual bool reads_shard() const { return true; }
  /// Whether the values that arrive are rounded. This rank then computes with what arrives of its
  /// own shard, too, so that all ranks compute with the same bits.
  virtual bool rounds() const { return false; }
  /// Where this rank's shard lies between gathers: by default in memory. Called once, when `shard`
  /// has its first values. If it returns true the transfer has taken them and the bytes of `shard`:
  /// gather() then fills all of `full` from where they lie, and `shard` has bytes only for the
  /// update, which the mode's optimizer makes, and after bring().
  virtual bool takes(const at::Tensor& /*shard*/) { return false; }
  /// If the transfer has taken the shard: gives `shard` its bytes, for reads and writes until the
  /// mode brings, gathers or updates something else. Called on this rank alone.
  virtual void bring(const at::Tensor& /*shard*/) {}
  /// The program has written into `full`, which is whole and not rounded, on all ranks alike. Later
  /// gathers must bring what is there now. Called if held_bytes() is not 0, or if the transfer has
  /// taken the shard. Does not throw.
  virtual void written(const at::Tensor& /*full*/) {}
  /// Bytes that it holds between gathers (memory::Category::kParameters).
  virtual std::int64_t held_bytes() const { return 0; }
  /// What this rank sends if the weights, as they are now, are gathered `gathers` times.
  virtual SentBytes sent(std::int64_t gathers) const = 0;
};

/// How the gradients of one flat buffer are averaged over all ranks. There is one reduction of a
/// buffer at a time:
///
///     reduce(full, shard)     … wait()     the first part
///     reduce_rest(shard)      … wait()     what is left, if has_rest()
///
/// All ranks call both, and wait, in the same order.
class GradientTransfer {
 public:
  virtual ~GradientTransfer() = default;

  /// Starts to reduce `full` [N * shard], which must stay as it is until wait(). `shard` [shard] is
  /// then the average of this rank's shard over all ranks, if there is no rest.
  virtual dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) = 0;
  /// Whether reduce_rest() must follow; the same on all ranks.
  virtual bool has_rest() const { return false; }
  /// Call after that wait(). After this one's wait(), `shard` is the average.
  virtual dist::Work reduce_rest(const at::Tensor& /*shard*/) { return {}; }
  /// What this rank sends in a reduction.
  virtual SentBytes sent() const = 0;
};

/// What a transfer must know of the buffer that it serves. Only `pool` outlives the call.
struct FlatBuffer {
  const ShardLayout& layout;
  at::TensorOptions options;  ///< dtype and device
  memory::StoragePool& pool;  ///< where scratch gets its bytes
  /// A number that is another one after each change of the weights; the same on all ranks.
  std::function<std::int64_t()> version;
};

/// How a mode sends: in other ways than by one collective over all data ranks. A function may be
/// empty or return null; the collective of the stage is used then.
struct Transfers {
  /// For each buffer whose parameters are sharded.
  std::function<std::unique_ptr<ParameterTransfer>(const FlatBuffer&)> parameters = {};
  /// For each trainable buffer of which a rank updates a shard.
  std::function<std::unique_ptr<GradientTransfer>(const FlatBuffer&)> gradients = {};
  /// Of all other ranks, how many are outside of this rank's group; 0 without groups.
  int ranks_outside = 0;
  /// If the model states are sharded inside a group only: its ranks, and the ranks of all groups
  /// that hold the same shard as this one. They must outlive the strategy.
  dist::Communicator* shards = nullptr;
  dist::Communicator* replicas = nullptr;
};

/// Every rank sends its shard to every other.
class AllGather final : public ParameterTransfer {
 public:
  /// `shard_bytes`: of one rank. `ranks_outside`: see Transfers. `ranks` must outlive this object.
  AllGather(dist::Communicator& ranks, std::int64_t shard_bytes, int ranks_outside,
            bool fills_own_part = true)
      : ranks_(ranks),
        shard_bytes_(shard_bytes),
        ranks_outside_(ranks_outside),
        fills_own_part_(fills_own_part) {}

  dist::Work gather(const at::Tensor& full, const at::Tensor& shard) override {
    return ranks_.all_gather(full, shard, dist::Purpose::kParameter, fills_own_part_);
  }
  bool fills_own_part() const override { return fills_own_part_; }
  SentBytes sent(std::int64_t gathers) const override {
    return {gathers * (ranks_.size() - 1) * shard_bytes_, gathers * ranks_outside_ * shard_bytes_};
  }

 private:
  dist::Communicator& ranks_;
  std::int64_t shard_bytes_;
  int ranks_outside_;
  bool fills_own_part_;
};

/// Every rank gets the average of its shard: a reduce-scatter. Or of all, in place, of which
/// `shard` is a part: an all-reduce, which sends as much again.
class Average final : public GradientTransfer {
 public:
  enum class Of : std::uint8_t { kShard, kAll };
  /// `shard_bytes`: of one rank, as they travel.
  Average(dist::Communicator& ranks, Of what, dist::Reduction average, std::int64_t shard_bytes,
          int ranks_outside)
      : ranks_(ranks),
        what_(what),
        average_(average),
        shard_bytes_(what == Of::kAll ? 2 * shard_bytes : shard_bytes),
        ranks_outside_(ranks_outside) {}

  dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) override {
    if (what_ == Of::kAll) return ranks_.all_reduce(full, dist::Purpose::kGradient, average_);
    return ranks_.reduce_scatter(shard, full, dist::Purpose::kGradient, average_);
  }
  SentBytes sent() const override {
    return {(ranks_.size() - 1) * shard_bytes_, ranks_outside_ * shard_bytes_};
  }

 private:
  dist::Communicator& ranks_;
  Of what_;
  dist::Reduction average_;
  std::int64_t shard_bytes_;
  int ranks_outside_;
};

}  // namespace zero::train

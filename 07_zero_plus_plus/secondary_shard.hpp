#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>

#include <zero/train/flat/transfers.hpp>

namespace zero {

/// hpZ, hierarchical partitioning (ZeRO++, Wang et al. 2023). Beside its shard of a buffer, which
/// is 1/N of it, a rank keeps a secondary shard, 1/S of it. The S ranks of a group together hold
/// the whole buffer:
///
///     the first gather of new weights    from all ranks; each then keeps its part of what arrived
///     every other gather                 from the secondary shards, inside the group
///
/// So backward sends no parameters between groups. The same holds for a part of forward that a
/// checkpoint runs again, for later micro-batches, and for later batches of an evaluation.
///
/// A secondary shard is not used after its weights change: it remembers the version of the weights,
/// and every update and every load of a checkpoint makes a new version.
class SecondaryShard final : public train::ParameterTransfer {
 public:
  /// See train::FlatBuffer::version.
  using WeightsVersion = std::function<std::int64_t()>;

  /// `from_all`: how new weights are gathered. `group`: this rank's group, which must outlive this
  /// object. `elements`: of the whole buffer. `options`: its dtype and device. The ranks of a group
  /// must be consecutive, and N a multiple of S.
  SecondaryShard(std::unique_ptr<train::ParameterTransfer> from_all, dist::Communicator& group,
                 std::int64_t elements, const at::TensorOptions& options, WeightsVersion version);

  dist::Work gather(const at::Tensor& full, const at::Tensor& shard) override;
  bool reads_shard() const override { return made_from_ != version_(); }
  bool rounds() const override { return from_all_->rounds(); }
  void written(const at::Tensor& full) override {
    if (!reads_shard()) keep_part_of(full);
  }
  std::int64_t held_bytes() const override;
  /// One gather from all ranks if the weights are new, and the others inside the group.
  train::SentBytes sent(std::int64_t gathers) const override;

 private:
  void keep_part_of(const at::Tensor& full);

  static constexpr std::int64_t kNothing = -1;

  std::unique_ptr<train::ParameterTransfer> from_all_;
  dist::Communicator& group_;
  WeightsVersion version_;
  at::Tensor secondary_;  // [elements / S]
  std::int64_t made_from_ = kNothing;
};

}  // namespace zero

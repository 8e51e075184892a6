#pragma once

#include <torch/types.h>

#include <zero/distributed/mesh.hpp>
#include <zero/train/flat/transfers.hpp>

#include "gradient_hop.hpp"

namespace zero {

/// qgZ, quantized gradients (ZeRO++, Wang et al. 2023). A ring would round a sum once for every
/// rank that it passes. Two all-to-alls round twice. With R groups of S ranks, the rank at place s
/// of a group sends
///
///     inside the group    to place t: the R shards whose owners are at place t of all groups;
///                         the rank at place t adds up what its group sends, in float32
///     between groups      to place s of group h: the group's sum of the shard of that rank,
///                         which adds up the sums of all groups and divides by R S
///
/// so that the sum of a shard leaves a group once. With two groups of two ranks rank 0 sends the
/// shards in the order 0 2 1 3, the first two to itself.
///
/// Ranks add up the values as they were sent, rounded, also their own part, in the order of ranks
/// inside a group and then in the order of groups. So the average does not depend on the owner.
class QuantizedGradients final : public train::GradientTransfer {
 public:
  /// `mesh`: the groups, axes "replica" and "shard"; it must outlive this object, and so must
  /// `buffer.pool`.
  QuantizedGradients(const dist::Mesh& mesh, ShardBlocks blocks, const train::FlatBuffer& buffer);

  /// The hop inside the group. After its wait() this object holds R shards of the group's sums in
  /// float32; before it, a GradientHop::Exchange.
  dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) override;
  bool has_rest() const override { return true; }
  /// The hop between groups; nothing to wait for if there is one group.
  dist::Work reduce_rest(const at::Tensor& shard) override;
  train::SentBytes sent() const override {
    return {inside_.sent_bytes() + between_.sent_bytes(), between_.sent_bytes()};
  }

 private:
  void average(const at::Tensor& sum, const at::Tensor& shard) const;
  void note_overflow(const at::Tensor& sum) const;

  dist::Communicator& all_;
  bool has_groups_;
  memory::StoragePool& pool_;
  ShardBlocks blocks_;
  GradientHop inside_;
  GradientHop between_;
  at::Tensor sums_;  // of the group, between the two hops
};

}  // namespace zero

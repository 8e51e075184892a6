#pragma once

#include <cstdint>

#include <00_simple_ddp/simple_ddp.hpp>

namespace zero {

/// Chapter 00 with a hierarchical all-reduce: every gradient is averaged inside groups of S ranks,
/// then between the groups. This is the order in which HSDP adds, ((r0 + … + r(S-1)) + (rS + …) +
/// …), so the two must have the same bits. All ranks hold the whole model.
class HierarchicalDdp : public SimpleDdp {
 public:
  /// `shard_size`: S, or dist::Mesh::kRanksOfHost. Called by all ranks; blocks. Throws zero::Error
  /// on all ranks if groups of S ranks do not fill the ranks, or if ranks differ in S.
  HierarchicalDdp(const train::StrategyArguments& arguments, std::int64_t shard_size)
      : SimpleDdp(arguments.with_shards(shard_size)) {}

  train::Costs costs() const override;

 protected:
  void average(const at::Tensor& gradient) override;
};

}  // namespace zero

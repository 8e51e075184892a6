#pragma once

#include <cstdint>

#include <00_simple_ddp/simple_ddp.hpp>
#include <zero/base/keys.hpp>
#include <zero/distributed/mesh.hpp>

namespace zero {

struct HierarchicalDdpOptions {
  std::int64_t shard_size = dist::Mesh::kRanksOfHost;  ///< ranks of a group
};
void declare(base::Keys& keys, HierarchicalDdpOptions& options);

/// Chapter 00 with a hierarchical all-reduce: every gradient is averaged inside groups of S ranks,
/// then between the groups. This is the order in which Hsdp adds, ((r0 + … + r(S-1)) + (rS + …) +
/// …), so the two must have the same bits. All ranks hold the whole model.
class HierarchicalDdp : public SimpleDdp {
 public:
  /// `options.shard_size` is S. Called by all ranks; blocks. Throws zero::Error on all ranks if
  /// groups of S ranks do not fill the ranks, or if ranks differ in S.
  HierarchicalDdp(const train::StrategyArguments& arguments, const HierarchicalDdpOptions& options)
      : SimpleDdp(arguments.with_shards(options.shard_size)) {}

  train::Costs costs() const override;

 protected:
  void average(const at::Tensor& gradient) override;
};

}  // namespace zero

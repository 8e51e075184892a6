#pragma once

#include <06_hsdp/hsdp.hpp>
#include <zero/engine_config.hpp>

namespace zero::testing {

/// HSDP, for mutants to override.
struct WrongHsdp : ShardedDataParallel {
  WrongHsdp(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongHsdp(arguments.with_shards(config.shard_size), config, transfers) {}

 protected:
  /// `groups`: in groups already.
  template <typename MakeTransfers>
  WrongHsdp(const train::StrategyArguments& groups, const EngineConfig& config,
            const MakeTransfers& make)
      : ShardedDataParallel(groups, sharding_options(config), make(groups)) {}
  static train::Transfers transfers(const train::StrategyArguments& groups) {
    return hsdp_transfers(groups.mesh, groups.reduce_type);
  }
};

}  // namespace zero::testing

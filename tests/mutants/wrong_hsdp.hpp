#pragma once

#include <06_hsdp/hsdp.hpp>

namespace zero::testing {

/// HSDP, for mutants to override; `arguments.options` are HsdpOptions.
struct WrongHsdp : Overlap {
  static HsdpOptions options_of(const train::StrategyArguments& arguments) {
    return base::options_from<HsdpOptions>(arguments.options);
  }
  static train::StrategyArguments in_groups(const train::StrategyArguments& arguments) {
    return arguments.with_shards(options_of(arguments).shard_size);
  }
  explicit WrongHsdp(const train::StrategyArguments& arguments)
      : WrongHsdp(in_groups(arguments), [](const train::StrategyArguments& groups) {
          return hsdp_transfers(groups.mesh, groups.reduce_type);
        }) {}
  /// `groups`: in groups already.
  template <typename MakeTransfers>
  WrongHsdp(const train::StrategyArguments& groups, const MakeTransfers& transfers)
      : Overlap(groups, options_of(groups).overlap, transfers(groups)) {}
};

}  // namespace zero::testing

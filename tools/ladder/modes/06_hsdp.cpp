// The names of this chapter's modes.
#include <06_hsdp/hierarchical_ddp.hpp>
#include <tools/ladder/registry.hpp>

namespace zero {

void register_hsdp(tools::Registry& registry) {
  constexpr std::int64_t kByHost = dist::Mesh::kRanksOfHost;
  tools::StrategyEntry hddp{"hddp", "06_hsdp", {"by_host"}};
  hddp.make = [](const train::StrategyArguments& arguments, const EngineConfig& config) {
    return std::make_unique<HierarchicalDdp>(arguments, config.shard_size);
  };
  hddp.presets = {{.shard_size = kByHost}};
  hddp.declare = [](base::Keys& keys, EngineConfig& config) {
    keys.count_or("shard_size", "host", kByHost, config.shard_size, /*least=*/1);
  };
  registry.add(std::move(hddp));
  registry.add_engine("hsdp1", "06_hsdp", {{"by_host", {.stage = 1, .shard_size = kByHost}}});
  registry.add_engine("hsdp2", "06_hsdp", {{"by_host", {.stage = 2, .shard_size = kByHost}}});
  registry.add_engine("hsdp3", "06_hsdp", {{"by_host", {.stage = 3, .shard_size = kByHost}}});
}

}  // namespace zero

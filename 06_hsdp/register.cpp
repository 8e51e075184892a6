// The names under which the ladder, the tests, the benchmarks and the engine find the strategies of
// this chapter.
#include <fmt/format.h>

#include <any>
#include <memory>
#include <string>
#include <vector>

#include <zero/base/program.hpp>
#include <zero/engine/engine_config.hpp>
#include <zero/train/registry.hpp>

#include "hierarchical_ddp.hpp"
#include "hsdp.hpp"

namespace zero {

OverlapOptions hsdp_options(int stage, const train::StrategyArguments& arguments) {
  if (const auto* options = std::any_cast<OverlapOptions>(&arguments.options)) return *options;
  if (arguments.variant.find('=') != std::string::npos) {
    std::vector<std::string> notes;
    const OverlapOptions options =
        overlap_options(stage, arguments.variant, &notes, /*has_groups=*/true);
    for (const std::string& note : notes) {
      if (arguments.mesh.world().rank() == 0) log_error("note: " + note);
    }
    return options;
  }
  OverlapOptions options;
  options.stage = stage;
  options.shard_size = kRanksOfHost;
  return options;
}

void register_hsdp(train::Registry& registry) {
  registry.add({"hddp",
                "06_hsdp",
                {"by_host"},
                [](const train::StrategyArguments& arguments) {
                  return std::make_unique<HierarchicalDdp>(
                      arguments, HierarchicalDdp::shard_size_of(arguments.variant));
                },
                [](const std::string& variant) { HierarchicalDdp::shard_size_of(variant); }});
  for (int stage = 1; stage <= 3; ++stage) {
    registry.add({fmt::format("hsdp{}", stage),
                  "06_hsdp",
                  {"by_host"},
                  [stage](const train::StrategyArguments& arguments) {
                    return std::make_unique<Hsdp>(arguments, hsdp_options(stage, arguments));
                  },
                  [stage](const std::string& variant) {
                    overlap_options(stage, variant, /*notes=*/nullptr, /*has_groups=*/true);
                  }});
  }
}

}  // namespace zero

// The names under which the ladder, the tests, the benchmarks and the engine find the strategies of
// this chapter.
#include <fmt/format.h>

#include <zero/train/registry.hpp>

#include "hierarchical_ddp.hpp"
#include "hsdp.hpp"

namespace zero {

void register_hsdp(train::Registry& registry) {
  registry.add<HierarchicalDdp, HierarchicalDdpOptions>("hddp", "06_hsdp", "{}",
                                                        {{"by_host", "{}"}});
  for (int stage = 1; stage <= 3; ++stage) {
    registry.add<Hsdp, HsdpOptions>(fmt::format("hsdp{}", stage), "06_hsdp",
                                    fmt::format(R"({{"stage": {}}})", stage), {{"by_host", "{}"}});
  }
}

}  // namespace zero

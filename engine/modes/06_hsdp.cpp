// The names of this chapter's modes.
#include <fmt/format.h>

#include <06_hsdp/hierarchical_ddp.hpp>
#include <06_hsdp/hsdp.hpp>
#include <zero/train/registry.hpp>

namespace zero {

void register_hsdp(train::Registry& registry) {
  registry.add<HierarchicalDdp, HierarchicalDdpOptions>("hddp", "06_hsdp", "{}",
                                                        {{"by_host", "{}"}});
  for (int stage = 1; stage <= 3; ++stage) {
    registry.add<HsdpOptions>(fmt::format("hsdp{}", stage), "06_hsdp",
                              fmt::format(R"({{"stage": {}}})", stage), {{"by_host", "{}"}},
                              make_hsdp);
  }
}

}  // namespace zero

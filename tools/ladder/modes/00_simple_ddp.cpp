// The names of this chapter's modes.
#include <00_simple_ddp/simple_ddp.hpp>
#include <tools/ladder/registry.hpp>

namespace zero {

void register_simple_ddp(tools::Registry& registry) {
  registry.add<SimpleDdp>("ddp", "00_simple_ddp", {"per_parameter", "flat"});
}

}  // namespace zero

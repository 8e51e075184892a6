// The names of this chapter's modes.
#include <00_simple_ddp/simple_ddp.hpp>
#include <zero/train/registry.hpp>

namespace zero {

void register_simple_ddp(train::Registry& registry) {
  registry.add<SimpleDdp>("ddp", "00_simple_ddp", {"per_parameter", "flat"});
}

}  // namespace zero

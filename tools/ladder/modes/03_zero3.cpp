// The names of this chapter's modes.
#include <03_zero3/zero3_sharding.hpp>
#include <tools/ladder/registry.hpp>

namespace zero {

void register_zero3(tools::Registry& registry) {
  registry.add<Zero3Sharding>("zero3", "03_zero3", {"unit", "whole"});
}

}  // namespace zero

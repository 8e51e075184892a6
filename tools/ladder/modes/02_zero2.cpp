// The names of this chapter's modes.
#include <02_zero2/zero2_sharding.hpp>
#include <tools/ladder/registry.hpp>

namespace zero {

void register_zero2(tools::Registry& registry) {
  registry.add<Zero2Sharding>("zero2", "02_zero2", {"during", "after", "placeholder"});
}

}  // namespace zero

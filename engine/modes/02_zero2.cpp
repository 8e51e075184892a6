// The names of this chapter's modes.
#include <02_zero2/zero2_sharding.hpp>
#include <zero/train/registry.hpp>

namespace zero {

void register_zero2(train::Registry& registry) {
  registry.add<Zero2Sharding>("zero2", "02_zero2", {"during", "after", "placeholder"});
}

}  // namespace zero

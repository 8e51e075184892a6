// The names of this chapter's modes.
#include <01_zero1/zero1_sharding.hpp>
#include <zero/train/registry.hpp>

namespace zero {

void register_zero1(train::Registry& registry) {
  registry.add<Zero1Sharding>("zero1", "01_zero1", {"owner", "naive"});
}

}  // namespace zero

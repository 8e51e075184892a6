// The names of this chapter's modes.
#include <01_zero1/zero1_sharding.hpp>
#include <tools/ladder/registry.hpp>

namespace zero {

void register_zero1(tools::Registry& registry) {
  registry.add<Zero1Sharding>("zero1", "01_zero1", {"owner", "naive"});
}

}  // namespace zero

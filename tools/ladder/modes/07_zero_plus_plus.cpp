// The names of this chapter's modes.
#include <tools/ladder/registry.hpp>

namespace zero {

void register_zero_plus_plus(tools::Registry& registry) {
  const auto add = [&](const char* name, EngineConfig parts, bool rounds) {
    EngineConfig by_rank = parts;
    by_rank.group_size = 1;
    registry.add_engine(name, "07_zero_plus_plus", {{"by_host", parts}, {"by_rank", by_rank}},
                        rounds);
  };
  add("hpz", {.secondary_shards = true}, /*rounds=*/false);
  add("qwz", {.quantize_parameters = true}, /*rounds=*/true);
  add("qgz", {.quantize_gradients = true}, /*rounds=*/true);
  add("zeropp", {.secondary_shards = true, .quantize_parameters = true, .quantize_gradients = true},
      /*rounds=*/true);
}

}  // namespace zero

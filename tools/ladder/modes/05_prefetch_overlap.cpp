// The names of this chapter's modes.
#include <tools/ladder/registry.hpp>

namespace zero {

void register_prefetch_overlap(tools::Registry& registry) {
  const char* const chapter = "05_prefetch_overlap";
  registry.add_engine("engine0", chapter, {{"overlap", {.stage = 0}}});
  registry.add_engine("engine1", chapter, {{"overlap", {.stage = 1}}});
  registry.add_engine("engine2", chapter, {{"overlap", {.stage = 2}}});
  registry.add_engine("engine3", chapter,
                      {{"overlap", {.stage = 3}}, {"on_demand", {.stage = 3, .lookahead = 0}}});
}

}  // namespace zero

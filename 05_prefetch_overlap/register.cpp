// The names under which the ladder, the tests, the benchmarks and the engine find the strategies of
// this chapter.
#include <fmt/format.h>

#include <zero/train/registry.hpp>

#include "overlap.hpp"

namespace zero {

void register_prefetch_overlap(train::Registry& registry) {
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<std::pair<std::string, std::string>> variants = {{"overlap", "{}"}};
    if (stage == 3) {
      variants.insert(variants.end(), {{"on_demand", R"({"lookahead": 0})"},
                                       {"auto", R"({"lookahead": "auto"})"},
                                       {"hybrid", R"({"whole_below": "hybrid"})"}});
    }
    registry.add<Overlap, OverlapOptions>(fmt::format("engine{}", stage), "05_prefetch_overlap",
                                          fmt::format(R"({{"stage": {}}})", stage), variants);
  }
}

}  // namespace zero

// The names of this chapter's modes.
#include <fmt/format.h>

#include <05_prefetch_overlap/overlap.hpp>
#include <zero/train/registry.hpp>

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

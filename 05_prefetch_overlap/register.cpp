// The names under which the ladder, the tests and the benchmarks find the strategies of this
// chapter.
#include <fmt/format.h>

#include <any>
#include <memory>
#include <string>
#include <vector>

#include <zero/base/program.hpp>
#include <zero/engine/engine_config.hpp>
#include <zero/train/registry.hpp>

#include "overlap.hpp"

namespace zero {

namespace {

OverlapOptions options_of(int stage, const train::StrategyArguments& arguments) {
  if (const auto* options = std::any_cast<OverlapOptions>(&arguments.options)) return *options;
  const std::string& variant = arguments.variant;
  if (variant.find('=') != std::string::npos) {
    std::vector<std::string> notes;
    const OverlapOptions options = overlap_options(stage, variant, &notes);
    for (const std::string& note : notes) {
      if (arguments.mesh.world().rank() == 0) log_error("note: " + note);
    }
    return options;
  }
  OverlapOptions options;
  options.stage = stage;
  if (variant == "on_demand") options.lookahead = 0;
  if (variant == "auto") options.lookahead = kAutoLookahead;
  if (variant == "hybrid") options.whole_below = kHybridThreshold;
  return options;
}

}  // namespace

void register_prefetch_overlap(train::Registry& registry) {
  for (int stage = 0; stage <= 3; ++stage) {
    registry.add({fmt::format("engine{}", stage), "05_prefetch_overlap",
                  stage < 3 ? std::vector<std::string>{"overlap"}
                            : std::vector<std::string>{"overlap", "on_demand", "auto", "hybrid"},
                  [stage](const train::StrategyArguments& arguments) {
                    return std::make_unique<Overlap>(arguments, options_of(stage, arguments));
                  },
                  [stage](const std::string& variant) { overlap_options(stage, variant); }});
  }
}

}  // namespace zero

// The names under which the ladder, the tests, the benchmarks and the engine find the strategies of
// this chapter.
#include <any>
#include <memory>
#include <string>

#include <zero/engine/engine_config.hpp>
#include <zero/train/registry.hpp>

#include "zero_plus_plus.hpp"

namespace zero {

OverlapOptions zero_plus_plus_options(const train::StrategyArguments& arguments,
                                      const OverlapOptions& defaults) {
  if (const auto* options = std::any_cast<OverlapOptions>(&arguments.options)) return *options;
  if (arguments.variant.find('=') != std::string::npos) {
    return zero_plus_plus_options(defaults, arguments.variant);
  }
  OverlapOptions options = defaults;
  if (arguments.variant == "by_rank") options.group_size = 1;
  return options;
}

void register_zero_plus_plus(train::Registry& registry) {
  const auto add = [&](const char* name, const OverlapOptions& defaults) {
    const auto make = [defaults](const train::StrategyArguments& arguments) {
      return std::make_unique<ZeroPlusPlus>(arguments, zero_plus_plus_options(arguments, defaults));
    };
    const auto check = [defaults](const std::string& variant) {
      zero_plus_plus_options(defaults, variant);
    };
    registry.add({.name = name,
                  .chapter = "07_zero_plus_plus",
                  .variants = {"by_host", "by_rank"},
                  .make = make,
                  .check_options = check,
                  .rounds = defaults.quantize_parameters || defaults.quantize_gradients});
  };
  add("hpz", {.secondary_shards = true});
  add("qwz", {.quantize_parameters = true});
  add("qgz", {.quantize_gradients = true});
  add("zeropp",
      {.secondary_shards = true, .quantize_parameters = true, .quantize_gradients = true});
}

}  // namespace zero

// The names of this chapter's modes.
#include <fmt/format.h>

#include <07_zero_plus_plus/zero_plus_plus.hpp>
#include <zero/train/registry.hpp>

namespace zero {

void register_zero_plus_plus(train::Registry& registry) {
  const auto add = [&](const char* name, bool secondary, bool parameters, bool gradients) {
    const std::string parts = fmt::format(
        R"("secondary_shards": {}, "quantize_parameters": {}, "quantize_gradients": {})", secondary,
        parameters, gradients);
    const bool several = secondary && parameters;  // any two or more
    registry.add<ZeroPlusPlusOptions>(
        name, "07_zero_plus_plus", several ? R"({"stage": 3})" : R"({"stage": 3, )" + parts + "}",
        {{"by_host", "{" + parts + "}"}, {"by_rank", "{" + parts + R"(, "group_size": 1})"}},
        make_zero_plus_plus, /*rounds=*/parameters || gradients);
  };
  add("hpz", true, false, false);
  add("qwz", false, true, false);
  add("qgz", false, false, true);
  add("zeropp", true, true, true);
}

}  // namespace zero

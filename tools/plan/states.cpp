#include "states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>

namespace zero::plan {
namespace {

std::int64_t moments(std::string_view optimizer) {
  static const std::vector<std::string> known = {"sgd", "momentum", "adamw"};
  const auto found = std::ranges::find(known, optimizer);
  if (found != known.end()) return found - known.begin();
  throw Error(base::unknown_name_message("optimizer", optimizer, known));
}

}  // namespace

const char* name(Stage stage) {
  constexpr const char* kNames[] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  return kNames[static_cast<int>(stage)];
}

Policy fp32(std::string_view optimizer) { return {"fp32", 4, 4, 4 * moments(optimizer)}; }

Policy mixed(std::string_view optimizer) { return {"mixed", 2, 2, 4 + 4 * moments(optimizer)}; }

Policy policy(std::string_view dtype, std::string_view optimizer) {
  static const std::vector<std::string> known = {"fp32", "mixed", "bf16", "fp16"};
  const auto found = std::ranges::find(known, dtype);
  if (found == known.end()) throw Error(base::unknown_name_message("dtype", dtype, known));
  return found == known.begin() ? fp32(optimizer) : mixed(optimizer);
}

States model_states(std::int64_t parameters, const Policy& policy, Stage stage,
                    std::int64_t world_size) {
  if (world_size < 1) {
    throw Error(fmt::format("the world size is {}, but must be at least 1", world_size));
  }
  const std::int64_t shard = parameters / world_size + (parameters % world_size != 0 ? 1 : 0);
  const auto bytes = [&](Stage sharded_from, std::int64_t each) {
    return each * (stage >= sharded_from ? shard : parameters);
  };
  return {bytes(Stage::kZero3, policy.parameter), bytes(Stage::kZero2, policy.gradient),
          bytes(Stage::kZero1, policy.optimizer)};
}

double redundant_share(std::int64_t world_size) {
  return static_cast<double>(world_size - 1) / static_cast<double>(world_size);
}

std::optional<std::int64_t> fewest_ranks(std::int64_t limit, std::int64_t from,
                                         const std::function<std::int64_t(std::int64_t)>& needed) {
  if (needed(kLargestWorldSize) > limit) return std::nullopt;
  const auto ranks = std::views::iota(static_cast<int>(from), int{kLargestWorldSize} + 1);
  return *std::ranges::partition_point(ranks, [&](int n) { return needed(n) > limit; });
}

}  // namespace zero::plan

#include "states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>

namespace zero::plan {
namespace {

std::int64_t moments(std::string_view optimizer) {
  if (optimizer == "adamw") return 2;
  if (optimizer == "momentum") return 1;
  if (optimizer == "sgd") return 0;
  throw Error(base::unknown_name_message("optimizer", optimizer, optimizer_names()));
}

std::int64_t shard(std::int64_t parameters, std::int64_t world_size) {
  if (world_size < 1) {
    throw Error(fmt::format("the world size is {}, but must be at least 1", world_size));
  }
  return parameters / world_size + (parameters % world_size != 0 ? 1 : 0);
}

// Elements of each kind that a rank holds: `all`, or `own` if the stage shards that kind.
States elements(Stage stage, std::int64_t all, std::int64_t own) {
  return {stage >= Stage::kZero3 ? own : all, stage >= Stage::kZero2 ? own : all,
          stage >= Stage::kZero1 ? own : all};
}

States times(const States& elements, const Policy& policy) {
  return {elements.parameters * policy.parameter, elements.gradients * policy.gradient,
          elements.optimizer * policy.optimizer};
}

}  // namespace

const char* name(Stage stage) {
  constexpr const char* kNames[] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  return kNames[static_cast<int>(stage)];
}

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = {"adamw", "momentum", "sgd"};
  return names;
}

Policy fp32(std::string_view optimizer) { return {"fp32", 4, 4, 4 * moments(optimizer)}; }

Policy mixed(std::string_view optimizer) { return {"mixed", 2, 2, 4 + 4 * moments(optimizer)}; }

Policy policy(std::string_view dtype, std::string_view optimizer) {
  if (dtype == "fp32") return fp32(optimizer);
  if (dtype == "mixed" || dtype == "bf16" || dtype == "fp16") return mixed(optimizer);
  static const std::vector<std::string> known = {"fp32", "mixed", "bf16", "fp16"};
  throw Error(base::unknown_name_message("dtype", dtype, known));
}

States model_states(std::int64_t parameters, const Policy& policy, Stage stage,
                    std::int64_t world_size) {
  return times(elements(stage, parameters, shard(parameters, world_size)), policy);
}

States states_at_limit(std::int64_t parameters, const Policy& policy, Stage stage) {
  return times(elements(stage, parameters, 0), policy);
}

States with_offloaded_optimizer(const States& states) {
  return {states.parameters, states.gradients, 0};
}

double bytes_per_parameter(const Policy& policy, Stage stage, std::int64_t world_size) {
  const States undivided = states_at_limit(1, policy, stage);
  const auto divided = static_cast<double>(policy.total() - undivided.total());
  return static_cast<double>(undivided.total()) + divided / static_cast<double>(world_size);
}

double ratio_to_ddp(const Policy& policy, Stage stage, std::int64_t world_size) {
  return bytes_per_parameter(policy, stage, world_size) / static_cast<double>(policy.total());
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

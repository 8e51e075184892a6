#include "stages.hpp"

#include <algorithm>
#include <cmath>
#include <ranges>

namespace zero::plan {
const char* name(Stage stage) {
  constexpr const char* kNames[] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  return kNames[static_cast<int>(stage)];
}

std::int64_t share(std::int64_t elements, std::int64_t ranks) {
  return (elements + ranks - 1) / ranks;
}

States model_states(std::int64_t parameters, const Policy& policy, Stage stage,
                    std::int64_t world_size) {
  const auto bytes = [&](Stage sharded_from, std::int64_t each) {
    return each * (stage >= sharded_from ? share(parameters, world_size) : parameters);
  };
  return {bytes(Stage::kZero3, policy.parameter), bytes(Stage::kZero2, policy.gradient),
          bytes(Stage::kZero1, policy.optimizer)};
}

double redundant_share(std::int64_t world_size) {
  return static_cast<double>(world_size - 1) / static_cast<double>(world_size);
}

std::optional<std::int64_t> fewest_ranks(std::int64_t limit, std::int64_t from,
                                         const std::function<std::int64_t(std::int64_t)>& needed) {
  if (needed(kMostRanks) > limit) return std::nullopt;
  const auto ranks = std::views::iota(static_cast<int>(from), int{kMostRanks} + 1);
  return *std::ranges::partition_point(ranks, [&](int n) { return needed(n) > limit; });
}

Copies copies(std::int64_t parameters, const Policy& policy) {
  return {static_cast<double>(parameters * policy.gradient),
          static_cast<double>(parameters * policy.parameter)};
}

Traffic volume(Scheme scheme, const Copies& v, std::int64_t world_size, double kept_share) {
  // Copies of gradients reduced and gathered, and of parameters gathered.
  const double counts[][3] = {{1, 1, 0}, {1, 0, 1},
                              {1, 0, 1}, {1, 0, 2 - kept_share},
                              {1, 1, 1}, {static_cast<double>(world_size), 0, 1},
                              {1, 0, 1}};
  const auto& [reduced, gathered, parameters] = counts[static_cast<int>(scheme)];
  return {reduced * v.gradients, gathered * v.gradients, parameters * v.parameters};
}

Traffic sent(Scheme scheme, const Copies& copies, std::int64_t world_size, double kept_share) {
  const Traffic whole = volume(scheme, copies, world_size, kept_share);
  const double part = redundant_share(world_size);
  return {whole.gradients_reduced * part, whole.gradients_gathered * part,
          whole.parameters_gathered * part};
}

double tensor_parallel_sent(std::int64_t tokens, std::int64_t hidden, std::int64_t element_bytes,
                            std::int64_t world_size) {
  return 8 * static_cast<double>(tokens) * static_cast<double>(hidden * element_bytes) *
         redundant_share(world_size);
}

std::int64_t tensor_parallel_crossover(std::int64_t layer_elements, std::int64_t hidden,
                                       const Policy& policy) {
  constexpr std::int64_t kTwoRanks = 2;  // any number: the factor (N-1)/N is on both sides
  const double layer = sent(Scheme::kZero3, copies(layer_elements, policy), kTwoRanks).total();
  const double a_token = tensor_parallel_sent(1, hidden, policy.parameter, kTwoRanks);
  return static_cast<std::int64_t>(std::floor(layer / a_token)) + 1;
}

}  // namespace zero::plan

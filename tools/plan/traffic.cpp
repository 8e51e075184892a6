#include "traffic.hpp"

#include <fmt/format.h>

#include <cmath>

#include <zero/base/error.hpp>

namespace zero::plan {

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
  if (world_size < 1) {
    throw Error(fmt::format("the world size is {}, but must be at least 1", world_size));
  }
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
  if (hidden < 1) throw Error("tensor parallelism needs layers with a hidden size");
  constexpr std::int64_t kTwoRanks = 2;  // any number: the factor (N-1)/N is on both sides
  const double layer = sent(Scheme::kZero3, copies(layer_elements, policy), kTwoRanks).total();
  const double a_token = tensor_parallel_sent(1, hidden, policy.parameter, kTwoRanks);
  return static_cast<std::int64_t>(std::floor(layer / a_token)) + 1;
}

}  // namespace zero::plan

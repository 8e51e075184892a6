#include "alternatives.hpp"

#include <cmath>

#include <zero/base/error.hpp>

namespace zero::plan {

Hybrid hybrid(std::int64_t large, std::int64_t small, const Policy& policy,
              std::int64_t world_size) {
  Hybrid result;
  result.large = large;
  result.small = small;
  const States of_large = model_states(large, policy, Stage::kZero3, world_size);
  const States of_small = model_states(small, policy, Stage::kZero2, world_size);
  result.states = {of_large.parameters + of_small.parameters,
                   of_large.gradients + of_small.gradients,
                   of_large.optimizer + of_small.optimizer};
  result.sent = sent(Scheme::kZero3, copies(large, policy), world_size).total() +
                sent(Scheme::kZero2, copies(small, policy), world_size).total();
  return result;
}

Hybrid hybrid(const Model& model, const Policy& policy, std::int64_t world_size,
              std::int64_t threshold) {
  std::int64_t large = 0;
  for (const std::int64_t unit : model.units) large += unit >= threshold ? unit : 0;
  return hybrid(large, model.parameters - large, policy, world_size);
}

double tensor_parallel_sent(std::int64_t tokens, std::int64_t hidden, std::int64_t element_bytes,
                            std::int64_t world_size) {
  constexpr double kAllReduces = 4;
  constexpr double kHalves = 2;
  return kAllReduces * kHalves * static_cast<double>(tokens * hidden * element_bytes) *
         redundant_share(world_size);
}

double zero3_layer_sent(std::int64_t layer_elements, const Policy& policy,
                        std::int64_t world_size) {
  return sent(Scheme::kZero3, copies(layer_elements, policy), world_size).total();
}

std::int64_t tensor_parallel_crossover(std::int64_t layer_elements, std::int64_t hidden,
                                       const Policy& policy) {
  constexpr std::int64_t kTwoRanks = 2;  // any number: the factor (N-1)/N is on both sides
  const double a_token = tensor_parallel_sent(1, hidden, policy.parameter, kTwoRanks);
  if (!(a_token > 0)) throw Error("tensor parallelism needs layers with a hidden size");
  const double layer = zero3_layer_sent(layer_elements, policy, kTwoRanks);
  return static_cast<std::int64_t>(std::floor(layer / a_token)) + 1;
}

}  // namespace zero::plan

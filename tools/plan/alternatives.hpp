#pragma once

#include <cstdint>

#include "timing.hpp"

/// What competes with one stage for everything: two stages by unit size, and tensor parallelism.
namespace zero::plan {

/// Units of at least `threshold` elements under ZeRO-3, the rest (the root too) under ZeRO-2.
struct Hybrid {
  std::int64_t large = 0;  ///< elements under ZeRO-3
  std::int64_t small = 0;  ///< elements under ZeRO-2
  States states;           ///< of one rank
  double sent = 0;         ///< bytes of one rank in a step
};

/// The size from which on a unit counts as large, in elements, where nothing else is said.
inline constexpr std::int64_t kHybridThreshold = 100'000'000;

/// Mixed Adam: 16 P_large/N + 2 P_small + 14 P_small/N bytes, and (6 P_large + 4 P_small) (N-1)/N
/// bytes sent. Follows from model_states() and sent() unit by unit; the idea of choosing by unit is
/// FSDP's reshard_after_forward (arXiv:2304.11277, section 3.2.2).
Hybrid hybrid(const Model& model, const Policy& policy, std::int64_t world_size,
              std::int64_t threshold = kHybridThreshold);
Hybrid hybrid(std::int64_t large, std::int64_t small, const Policy& policy,
              std::int64_t world_size);

/// One layer under tensor parallelism: four all-reduces of the layer's output, [tokens, hidden], in
/// a step, two in forward and two in backward (Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
/// section 3). An all-reduce sends 2 (N-1)/N of its bytes: 8 tokens hidden e (N-1)/N bytes for a
/// rank, e bytes an element. `tokens` are those of the whole group, which works on one batch
/// together.
double tensor_parallel_sent(std::int64_t tokens, std::int64_t hidden, std::int64_t element_bytes,
                            std::int64_t world_size);

/// Bytes that a rank sends for one layer under ZeRO-3: 3 V_layer (N-1)/N.
double zero3_layer_sent(std::int64_t layer_elements, const Policy& policy, std::int64_t world_size);

/// The tokens of a step, over all N ranks together, from which on ZeRO-3 sends less for a layer
/// than tensor parallelism: the smallest T with 3 V_layer < 8 T hidden e. Below it ZeRO-3 loses. N
/// cancels; per rank it is T/N tokens. 4.5 x hidden for a layer of 12 hidden^2 parameters.
std::int64_t tensor_parallel_crossover(std::int64_t layer_elements, std::int64_t hidden,
                                       const Policy& policy);

}  // namespace zero::plan

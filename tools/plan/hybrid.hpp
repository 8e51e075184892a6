#pragma once

#include <optional>
#include <vector>

#include "model.hpp"
#include "stages.hpp"

/// The hybrid: large modules or units under ZeRO-3, the rest under ZeRO-2. The idea of choosing by
/// unit is FSDP's reshard_after_forward (arXiv:2304.11277, section 3.2.2). For mixed Adam a rank
/// holds 16 P_large/N + 2 P_small + 14 P_small/N bytes and sends (6 P_large + 4 P_small) (N-1)/N,
/// less 2 P_root (N-1)/N if the root is large.
namespace zero::plan {

/// The size from which on a unit counts as large, in elements, unless another is given.
inline constexpr std::int64_t kHybridThreshold = 100'000'000;

/// Equal modules or units, and what all `count` of them take on one rank.
struct HybridPart : Module {
  Stage stage = Stage::kZero2;
  std::int64_t states =
      0;            ///< bytes; each is cut by itself, and rounded up if N does not divide it
  double sent = 0;  ///< bytes in a step
};

/// `modules`, such as Model::modules: one with `threshold` parameters and more is under ZeRO-3.
std::vector<HybridPart> hybrid(const std::vector<Module>& modules, const Policy& policy,
                               std::int64_t world_size, std::int64_t threshold);

/// The units of a model, as `whole_below` of engine3 decides: what is gathered together, the root
/// last. Under ZeRO-3 the root is gathered once in a step, not twice.
std::vector<HybridPart> hybrid_units(const Model& model, const Policy& policy,
                                     std::int64_t world_size,
                                     std::int64_t threshold = kHybridThreshold);

/// What the parts under `stage` (nothing: all) take together; `count` and `parameters` are sums.
HybridPart total(const std::vector<HybridPart>& parts, std::optional<Stage> stage = {});

}  // namespace zero::plan

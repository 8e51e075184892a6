#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model.hpp"
#include "states.hpp"

/// The hybrid module by module, and unit by unit: which stage each is under, and its bytes.
namespace zero::plan {

/// Equal modules or units, and what all `count` of them take on one rank.
struct HybridPart {
  std::string name;
  std::int64_t count = 1;
  std::int64_t parameters = 0;  ///< of one
  Stage stage = Stage::kZero2;
  States states = {};  ///< bytes; each is cut by itself, and where N does not divide it rounded up
  double sent = 0;     ///< bytes in a step
};

struct HybridReport {
  /// By module: one with `threshold` parameters of its own and more is under ZeRO-3, the others
  /// under ZeRO-2. Empty where only the number of parameters is known.
  std::vector<HybridPart> modules;
  /// By unit, as `whole_below` of engine3 decides: what is gathered together, the root last. Under
  /// ZeRO-3 the root is gathered once in a step, not twice.
  std::vector<HybridPart> units;
};

HybridReport hybrid_report(const Model& model, const Policy& policy, std::int64_t world_size,
                           std::int64_t threshold);

/// What the parts under `stage` (nothing: all) take together; `count` and `parameters` are sums.
HybridPart total(const std::vector<HybridPart>& parts, std::optional<Stage> stage = {});

}  // namespace zero::plan

#pragma once

#include <cstdint>
#include <vector>

namespace exercise_05d {

/// What is sharded of a unit between steps: gradients and moments, or parameters as well.
enum class Level { kZero2, kZero3 };

struct Parameter {
  std::int64_t elements;  ///< float32
  int unit;               ///< the unit that it belongs to
};

struct Model {
  int units;
  std::vector<Parameter> parameters;  ///< in order of registration
};

/// What an answer consists of. The elements of a unit divide by the number of ranks without
/// remainder, those of a parameter may not.
struct Answer {
  /// The level of each unit: ZeRO-3 from `threshold` elements on, ZeRO-2 below.
  std::vector<Level> (*levels)(const Model& model, std::int64_t threshold);
  /// Bytes of parameters, gradients and AdamW's two moments that a rank holds after a step.
  std::int64_t (*bytes_at_rest)(const Model& model, const std::vector<Level>& levels, int ranks);
  /// Bytes of gradients and parameters that a rank sends in a step.
  std::int64_t (*bytes_sent)(const Model& model, const std::vector<Level>& levels, int ranks);
};

}  // namespace exercise_05d

#pragma once

#include <algorithm>
#include <cstdint>

namespace exercise_10a {

/// Mixed precision with AdamW: parameters and gradients are bfloat16; master weights and two
/// moments are float32. `stage`: of ZeRO, 0 (DDP) to 3.
struct Plan {
  int stage;
  bool offload;             ///< of the optimizer, to the host's memory
  std::int64_t parameters;  ///< of the model
  std::int64_t ranks;
};

/// Bytes of one rank. What is divided by ranks is padded: each rank has the same.
struct Account {
  std::int64_t device = 0;  ///< model states in the device's memory at the end of a step
  std::int64_t host = 0;    ///< model states in the host's memory
  std::int64_t bus = 0;     ///< between host and device in a step, both directions together
};

/// What an answer consists of.
struct Answer {
  Account (*account)(const Plan& plan);
  /// The smallest number of ranks with less than `limit` bytes on the device, at most `most`; 0 if
  /// there is none. `plan.ranks` does not matter.
  std::int64_t (*fewest_ranks)(Plan plan, std::int64_t limit, std::int64_t most);
};

}  // namespace exercise_10a

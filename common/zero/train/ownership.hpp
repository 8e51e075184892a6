#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero::train {

/// Which rank owns which whole parameter.
enum class Ownership {
  kBySize,    ///< largest first, each to the rank that has least so far (greedy): the default
  kByCount,   ///< contiguous runs of equal length in registration order, remainder to the first
              ///< ranks
  kByOffset,  ///< cuts the flat bytes into one equal share per rank; the owner is the rank
              ///< in whose share the parameter begins
};

/// Names on the command line: "size", "count", "offset".
Ownership ownership_from(const std::string& name);
std::string name(Ownership ownership);

/// Owner of each parameter, computed from the sizes alone, so that every rank gets the same answer
/// without communication. `bytes` in registration order; ties go to the earlier parameter and the
/// lower rank.
std::vector<int> assign_owners(const std::vector<std::int64_t>& bytes, int world_size,
                               Ownership ownership);

}  // namespace zero::train

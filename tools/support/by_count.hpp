#pragma once

#include <cstddef>
#include <vector>

namespace zero::tools {

/// Owners of `count` parameters in runs of equal length, in registration order; the first ranks
/// have the remainder. The rule that lesson 01 compares train::assign_owners() with.
inline std::vector<int> owners_by_count(std::size_t count, std::size_t ranks) {
  std::vector<int> owners;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    owners.insert(owners.end(), (count + ranks - 1 - rank) / ranks, static_cast<int>(rank));
  }
  return owners;
}

}  // namespace zero::tools

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <tests/support/modes.hpp>

namespace zero::testing {

/// The modes of the chapter whose test program this is, which comes last in its registry:
/// all_modes() without what is there to compare with. In the program of the mutants the one that is
/// replaced, and what stays.
inline std::vector<std::string> own_modes() {
  tools::Registry all, own;
  tools::register_all_chapters(all);
  for (const tools::StrategyEntry& entry : all.entries()) {
    if (entry.chapter == all.entries().back().chapter) own.add(entry);
  }
  return own.exact_modes();
}

/// Runs `body` with each of them on the same ranks.
inline void on_own_modes(int world_size,
                         const std::function<void(dist::Communicator&, const std::string&)>& body) {
  on_modes(world_size, own_modes(), body);
}

}  // namespace zero::testing

#pragma once

#include <string>
#include <vector>

#include <zero/train/registry.hpp>

namespace zero::testing {

/// Every strategy and variant of all chapters.
inline std::vector<std::string> all_modes() {
  train::Registry registry;
  train::register_all_chapters(registry);
  return registry.modes();
}

}  // namespace zero::testing

#pragma once

#include <cstdlib>
#include <string_view>

namespace zero::testing {

/// For the patches beside this file: whether this process has the fault, which ZERO_FAULT names.
inline bool fault(std::string_view name) {
  static const char* const chosen = std::getenv("ZERO_FAULT");
  return chosen != nullptr && name == chosen;
}

}  // namespace zero::testing

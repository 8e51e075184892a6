#pragma once

#include <cstdlib>
#include <string>

namespace zero::testing {

/// The Python in which torch and transformers are looked for.
inline std::string python() {
  const char* const named = std::getenv("ZERO_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

}  // namespace zero::testing

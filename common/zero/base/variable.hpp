#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace zero::base {

/// The value of an environment variable; nothing if it is not set, or empty.
inline std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace zero::base

#pragma once

#include <string>

namespace zero::testing {

/// The fault that this process has in the library, by name; empty: none.
inline std::string& plant() {
  static std::string name;
  return name;
}

/// For the patches beside this file, which put faults into the library's sources.
inline bool planted(const char* name) { return plant() == name; }

}  // namespace zero::testing

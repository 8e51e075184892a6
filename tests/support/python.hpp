#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace zero::testing {

/// The Python that tests start.
inline std::string python() {
  const char* const named = std::getenv("ZERO_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

/// Whether it has these packages; looked for without the seconds that importing them takes.
inline bool python_has(const std::vector<std::string>& packages) {
  const std::string look = fmt::format(
      "'{}' -c 'import importlib.util as u, sys; "
      "sys.exit(not all(map(u.find_spec, sys.argv[1:])))' {} 2> /dev/null",
      python(), fmt::join(packages, " "));
  return std::system(look.c_str()) == 0;
}

}  // namespace zero::testing

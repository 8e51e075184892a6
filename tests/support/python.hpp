#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <zero/base/variable.hpp>

#include "program.hpp"

namespace zero::testing {

/// The Python that tests start.
inline std::string python() { return base::variable("ZERO_PYTHON").value_or("python3"); }

/// Runs it with `arguments`, words for the shell. Blocks until it has ended.
inline ProcessResult run_python(const std::string& arguments) {
  return run_command(fmt::format("PYTHONDONTWRITEBYTECODE=1 '{}' {}", python(), arguments));
}

/// Runs the first lines of Python that a document quotes, in `folder`. Blocks until they have
/// ended.
inline ProcessResult run_lines_of(const std::string& document,
                                  const std::filesystem::path& folder) {
  const std::string text = read_bytes(document), begin = "```python\n";
  const std::size_t first = text.find(begin) + begin.size();
  std::ofstream(folder / "lines.py") << text.substr(first, text.find("```", first) - first);
  return run_command(fmt::format("cd '{}' && '{}' lines.py", folder.string(), python()));
}

/// Whether it has these packages; looked for without the seconds that importing them takes.
inline bool python_has(const std::vector<std::string>& packages) {
  return run_python(fmt::format("-c 'import importlib.util as u, sys; "
                                "sys.exit(not all(map(u.find_spec, sys.argv[1:])))' {}",
                                fmt::join(packages, " ")))
             .code == 0;
}

}  // namespace zero::testing

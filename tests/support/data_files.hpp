#pragma once

#include <filesystem>
#include <string>

#include "error_of.hpp"
#include "test_folder.hpp"

/// Files of the repository, and helpers of the tests that read data.
namespace zero::testing {

/// Folders of the source tree: its top, and that of prepare.py.
inline std::filesystem::path repository() {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
}
inline std::filesystem::path data_tools() { return repository() / "tools/data"; }

/// Whether `text` has `part` in it, and `part` says something.
inline bool mentions(const std::string& text, const std::string& part) {
  return !part.empty() && text.find(part) != std::string::npos;
}

}  // namespace zero::testing

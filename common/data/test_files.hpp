#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <zero/error.hpp>
#include <zero/report/test_folder.hpp>

/// Helpers of the tests of common/data; nothing else includes this.
namespace zero::data::testing {

/// A folder for one test, with files in it.
class TestFolder : public report::TestFolder {
 public:
  /// Writes a file below the folder, making folders on the way, and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    const auto path = *this / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// common/data in the source tree, where the fixtures and prepare.py are. (This header is reached
/// through a link in the build folder.)
inline std::filesystem::path data_folder() {
  return std::filesystem::canonical(__FILE__).parent_path();
}

/// The message of the zero::Error that `action` throws; empty where it throws none.
template <typename Action>
std::string error_of(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Whether `text` has `part` in it, and `part` says something.
inline bool mentions(const std::string& text, const std::string& part) {
  return !part.empty() && text.find(part) != std::string::npos;
}

}  // namespace zero::data::testing

#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>

#include "token_file.hpp"

namespace zero::data {
namespace {

namespace fs = std::filesystem;

/// The files below `folder` with one of `extensions`, by path. Does not follow links to folders.
std::vector<fs::path> files_below(const fs::path& folder,
                                  const std::vector<std::string>& extensions) {
  std::vector<fs::path> found;
  std::error_code problem;
  auto entry = fs::recursive_directory_iterator(folder, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    if (entry->path().filename().string().starts_with('.')) {  // hidden
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() &&
               std::ranges::count(extensions, entry->path().extension().string()) > 0) {
      found.push_back(entry->path());
    }
  }
  if (problem) {
    throw Error(fmt::format("folder {} cannot be read: {}", folder.string(), problem.message()));
  }
  std::ranges::sort(found, {}, [](const fs::path& path) { return path.generic_string(); });
  return found;
}

std::vector<fs::path> files_of(const std::string& name) {
  if (!fs::exists(name)) throw Error(fmt::format("{} does not exist", name));
  if (!fs::is_directory(name)) return {name};
  std::vector<fs::path> found = files_below(name, {".txt", ".md"});
  if (found.empty()) throw Error(fmt::format("folder {} has no *.txt or *.md in it", name));
  return found;
}

TokenStream read_all(const std::vector<fs::path>& paths) {
  std::string text;
  for (const auto& path : paths) {
    if (is_token_file(path)) {
      throw Error(fmt::format("file {} is a token file, which is taken alone and by its own name",
                              path.string()));
    }
    text += base::read_file(path, fmt::format("file {}", path.string()));
  }
  return TokenStream::from_bytes(std::move(text));
}

}  // namespace

TokenStream text_from_files(const std::vector<std::string>& names) {
  std::vector<fs::path> found;
  for (const auto& name : names) {
    const auto files = files_of(name);
    found.insert(found.end(), files.begin(), files.end());
  }
  return read_all(found);
}

TokenStream project_text(const fs::path& root) {
  if (!fs::is_directory(root)) {
    throw Error(fmt::format("{} is not the folder of the project", root.string()));
  }
  static const std::regex chapter(R"(\d\d_.+)");
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && entry.path().extension() == ".md") {
      found.push_back(entry.path());
    } else if (entry.is_directory() && (name == "docs" || std::regex_match(name, chapter))) {
      const auto below = files_below(entry.path(), {".md"});
      found.insert(found.end(), below.begin(), below.end());
    }
  }
  // New lessons may still be empty; empty files add no text.
  std::erase_if(found, [](const fs::path& path) { return fs::file_size(path) == 0; });
  if (found.empty()) {
    throw Error(fmt::format("{} has no lessons or docs (*.md) to read as text", root.string()));
  }
  std::ranges::sort(found, {}, [](const fs::path& path) { return path.generic_string(); });
  return read_all(found);
}

}  // namespace zero::data

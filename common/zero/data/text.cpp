#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>

#include <zero/base/error.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/text.hpp>

namespace zero::data {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// The files below `folder` with one of `extensions`, by path. Does not follow links to folders.
std::vector<fs::path> files_below(const fs::path& folder,
                                  const std::vector<std::string>& extensions) {
  std::vector<fs::path> found;
  std::error_code problem;
  auto entry = fs::recursive_directory_iterator(folder, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    if (hidden(entry->path())) {
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

std::vector<std::string> expand_pattern(const std::string& pattern) {
  glob_t matches{};
  std::vector<std::string> names;
  if (::glob(pattern.c_str(), GLOB_NOSORT, /*errfunc=*/nullptr, &matches) == 0) {
    names.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  }
  ::globfree(&matches);
  std::ranges::sort(names);  // by bytes: glob() sorts by the machine's locale
  return names;
}

std::vector<fs::path> files_of(const std::string& name) {
  std::vector<fs::path> found;
  // An existing file with a bracket in its name is a file, not a pattern.
  std::error_code problem;
  const bool exists = fs::exists(name, problem);
  const bool pattern = !exists && name.find_first_of("*?[") != std::string::npos;
  if (!exists && !pattern) {
    throw Error(fmt::format("{} does not exist", name));
  }
  const auto names = pattern ? expand_pattern(name) : std::vector<std::string>{name};
  for (const auto& one : names) {
    if (fs::is_directory(one)) {
      const auto below = files_below(one, {".txt", ".md"});
      found.insert(found.end(), below.begin(), below.end());
    } else {
      found.emplace_back(one);
    }
  }
  if (found.empty()) {
    throw Error(pattern ? fmt::format("no file matches '{}'", name)
                        : fmt::format("folder {} has no *.txt or *.md in it", name));
  }
  return found;
}

TokenStream read_all(const std::vector<fs::path>& paths) {
  std::string text;
  for (const auto& path : paths) {
    if (file_kind(path) == FileKind::kTokens) {
      throw Error(fmt::format("file {} is a token file, which is taken alone and by its own name",
                              path.string()));
    }
    text += read_text_file(path);
  }
  return TokenStream::from_bytes(std::move(text));
}

bool is_chapter(const std::string& name) {
  return name.size() > 3 && std::isdigit(static_cast<unsigned char>(name[0])) != 0 &&
         std::isdigit(static_cast<unsigned char>(name[1])) != 0 && name[2] == '_';
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  const auto refuse = [&](const char* why) {
    throw Error(fmt::format("file {} {}", path.string(), why));
  };
  std::error_code problem;
  if (!fs::exists(path, problem)) {
    refuse(problem ? "cannot be reached; check the permissions of its folder" : "does not exist");
  }
  if (!fs::is_regular_file(path, problem)) {
    refuse("is not a regular file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(fs::file_size(path)), '\0');
  if (file && text.empty()) {
    refuse("is empty");
  }
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    refuse("cannot be read; check its permissions");
  }
  return text;
}

std::vector<fs::path> text_files(const std::vector<std::string>& names) {
  std::vector<fs::path> found;
  for (const auto& name : names) {
    const auto files = files_of(name);
    found.insert(found.end(), files.begin(), files.end());
  }
  return found;
}

TokenStream text_from_files(const std::vector<std::string>& names) {
  if (names.empty()) {
    throw Error("no text given: name at least one file or folder");
  }
  return read_all(text_files(names));
}

TokenStream project_text(const fs::path& root) {
  if (!fs::is_directory(root)) {
    throw Error(fmt::format("{} is not the folder of the project", root.string()));
  }
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && entry.path().extension() == ".md") {
      found.push_back(entry.path());
    } else if (entry.is_directory() && (name == "docs" || is_chapter(name))) {
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

double unigram_entropy(const TokenStream& tokens) {
  if (tokens.size() == 0) {
    throw Error("the entropy of no tokens is undefined: the text is empty");
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(tokens.vocabulary()));
  std::vector<std::int64_t> piece(4096);
  for (std::int64_t at = 0; at < tokens.size(); at += static_cast<std::int64_t>(piece.size())) {
    const auto left = static_cast<std::size_t>(tokens.size() - at);
    const std::size_t count = std::min(piece.size(), left);
    tokens.copy(at, {piece.data(), count});
    for (std::size_t i = 0; i < count; ++i) {
      ++counts[static_cast<std::size_t>(piece[i])];
    }
  }
  double entropy = 0;
  for (const std::int64_t count : counts) {
    if (count > 0) {
      const double share = static_cast<double>(count) / static_cast<double>(tokens.size());
      entropy -= share * std::log(share);
    }
  }
  return entropy;
}

}  // namespace zero::data

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <system_error>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_manifest.hpp>

namespace zero::io::checkpoint {

namespace fs = std::filesystem;

namespace {

// Regular expressions here are never destroyed: a static engine saves while the program ends.

[[noreturn]] void refuse_folder(const fs::path& path, const std::error_code& code) {
  throw Error(fmt::format("{}: cannot be made: {}", path.string(), code.message()));
}

}  // namespace

Fingerprint fingerprint(const fs::path& path) {
  const base::MappedFile file(path, path.string());
  return {static_cast<std::int64_t>(file.bytes().size()), base::to_hex(file.sha256())};
}

std::string make_step_folder(const fs::path& folder, std::int64_t step) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) refuse_folder(folder, code);
  for (int again = 0;; ++again) {
    const std::string name =
        fmt::format("step-{:09}{}", step, again == 0 ? "" : fmt::format(".{}", again));
    if (fs::create_directory(folder / name, code)) return name;
    if (code) refuse_folder(folder / name, code);
  }
}

std::string rank_file_name(int rank, int world_size) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, world_size);
}

void remove_step_folder(const fs::path& step_folder) {
  static const std::regex& ours =
      *new std::regex(R"(\.?rank-\d+-of-\d+\.safetensors(\.\d+\.\d+)?)");
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(step_folder, ignored)) {
    if (std::regex_match(entry.path().filename().string(), ours)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove(path, ignored);
  fs::remove(step_folder, ignored);  // does nothing if something is left in it
}

fs::path manifest_at(const fs::path& place) {
  return fs::is_regular_file(place) ? place : place / kManifestFile;
}

std::string older_manifest_name(const std::string& step_folder) { return step_folder + ".json"; }

std::vector<std::string> older_checkpoints(const fs::path& folder) {
  static const std::regex& older = *new std::regex(R"(step-\d+(\.\d+)?\.json)");
  std::error_code ignored;
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!std::regex_match(entry.path().filename().string(), older)) continue;
    found.emplace_back(entry.last_write_time(ignored), entry.path().stem().string());
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> names;
  for (const auto& [time, name] : found) names.push_back(name);
  return names;
}

void remove_step_folders(const fs::path& folder, const std::set<std::string>& keep) {
  static const std::regex& step = *new std::regex(R"(step-\d+(\.\d+)?)");
  static const std::regex& unfinished =
      *new std::regex(R"(\.(manifest|step-\d+(\.\d+)?)\.json\.\d+\.\d+)");
  std::error_code ignored;
  for (const std::string& name : older_checkpoints(folder)) {
    if (!keep.contains(name)) fs::remove(folder / older_manifest_name(name), ignored);
  }
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) found.push_back(entry.path());
  for (const fs::path& path : found) {
    const std::string name = path.filename().string();
    if (std::regex_match(name, unfinished)) fs::remove(path, ignored);
    if (!keep.contains(name) && std::regex_match(name, step) && !fs::is_symlink(path, ignored)) {
      remove_step_folder(path);
    }
  }
}

}  // namespace zero::io::checkpoint

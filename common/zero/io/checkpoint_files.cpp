#include <fmt/format.h>

#include <regex>
#include <system_error>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/io/checkpoint_files.hpp>

namespace zero::io::checkpoint {

namespace fs = std::filesystem;

namespace {

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
  static const std::regex ours(R"(\.?rank-\d+-of-\d+\.safetensors(\.\d+\.\d+)?)");
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(step_folder, ignored)) {
    if (std::regex_match(entry.path().filename().string(), ours)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove(path, ignored);
  fs::remove(step_folder, ignored);  // does nothing if something is left in it
}

void remove_step_folders(const fs::path& folder, const std::string& keep) {
  static const std::regex step(R"(step-\d+(\.\d+)?)");
  static const std::regex unfinished(R"(\.manifest\.json\.\d+\.\d+)");
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) found.push_back(entry.path());
  for (const fs::path& path : found) {
    const std::string name = path.filename().string();
    if (std::regex_match(name, unfinished)) fs::remove(path, ignored);
    if (name != keep && std::regex_match(name, step) && !fs::is_symlink(path, ignored)) {
      remove_step_folder(path);
    }
  }
}

}  // namespace zero::io::checkpoint

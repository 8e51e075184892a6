#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <set>
#include <system_error>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/io/checkpoint_files.hpp>

namespace zero::io::checkpoint {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_folder(const fs::path& path, const std::error_code& code) {
  throw Error(fmt::format("{}: cannot be made: {}", path.string(), code.message()));
}

// What lies in a folder under names of this pattern.
std::vector<fs::path> matching(const fs::path& folder, const char* pattern) {
  // Not a static one: a static engine saves while the program ends.
  const std::regex names(pattern);
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (std::regex_match(entry.path().filename().string(), names)) found.push_back(entry.path());
  }
  return found;
}

}  // namespace

SavedFile fingerprint(const fs::path& path) {
  const base::MappedFile file(path, path.string());
  return {path.filename(), static_cast<std::int64_t>(file.bytes().size()), file.sha256()};
}

std::vector<safetensors::File> open_files(const fs::path& step_folder, const Record& record) {
  std::vector<safetensors::File> files;
  for (const SavedFile& file : record.files) files.emplace_back(step_folder / file.name);
  return files;
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
  std::error_code ignored;
  for (const fs::path& file :
       matching(step_folder, R"(\.?rank-\d+-of-\d+\.safetensors(\.\d+\.\d+)?)")) {
    fs::remove(file, ignored);
  }
  fs::remove(step_folder, ignored);  // does nothing if something is left in it
}

fs::path record_at(const fs::path& place) {
  return fs::is_regular_file(place) ? place : place / kRecordFile;
}

std::string older_record_name(const std::string& step_folder) { return step_folder + ".json"; }

void remove_older(const fs::path& folder, const std::string& newest, int keep) {
  std::error_code ignored;
  std::vector<std::pair<fs::file_time_type, fs::path>> older;
  for (const fs::path& record : matching(folder, R"(step-\d+(\.\d+)?\.json)")) {
    older.emplace_back(fs::last_write_time(record, ignored), record);
  }
  std::ranges::sort(older, std::greater());
  std::set<std::string> kept = {newest};
  for (const auto& [time, record] : older) {
    if (std::ssize(kept) < keep) {
      kept.insert(record.stem());
    } else {
      fs::remove(record, ignored);
    }
  }
  for (const fs::path& unfinished :
       matching(folder, R"(\.(checkpoint|step-\d+(\.\d+)?)\.json\.\d+\.\d+)")) {
    fs::remove(unfinished, ignored);
  }
  for (const fs::path& step : matching(folder, R"(step-\d+(\.\d+)?)")) {
    if (!kept.contains(step.filename()) && !fs::is_symlink(step, ignored)) remove_step_folder(step);
  }
}

}  // namespace zero::io::checkpoint

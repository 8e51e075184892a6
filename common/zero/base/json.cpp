#include <fmt/chrono.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <torch/version.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>

#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/base/json_depth.hpp>

namespace zero::base {
namespace {

namespace fs = std::filesystem;

std::string reason(int code) { return std::generic_category().message(code); }

// Writes everything and brings it to the disk; returns 0 or the error's number.
int write_all(const fs::path& path, std::string_view contents) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return errno;
  int code = 0;
  if (std::fwrite(contents.data(), 1, contents.size(), file) != contents.size() ||
      std::fflush(file) != 0 || ::fsync(::fileno(file)) != 0) {
    code = errno;
  }
  if (std::fclose(file) != 0 && code == 0) code = errno;
  return code;
}

// Refuses what is there and no ordinary file: as root one would replace /dev/null by one. What a
// symbolic link leads to is written, and the link stays.
fs::path target_of(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
    throw Error(fmt::format("cannot write '{}': it is no ordinary file; name one", path.string()));
  }
  return fs::is_symlink(path, ignored) ? fs::weakly_canonical(path) : path;
}

}  // namespace

void write_file(const fs::path& name, std::string_view contents) {
  const fs::path path = target_of(name);
  if (!path.has_filename()) {
    throw Error(fmt::format("cannot write '{}': it names a folder, name a file", path.string()));
  }
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) {
    throw Error(fmt::format("cannot create the folder '{}': {}; name one that can be written to",
                            path.parent_path().string(), error.message()));
  }
  // The process's number keeps two programs that write the same file apart.
  fs::path temporary = path;
  temporary.replace_filename(fmt::format(".{}.{}", path.filename().string(), ::getpid()));
  int code = write_all(temporary, contents);
  if (code == 0) {
    fs::rename(temporary, path, error);
    code = error.value();
  }
  if (code != 0) {
    fs::remove(temporary, error);
    throw Error(fmt::format("cannot write '{}': {}; name a file in a folder that can be written to",
                            path.string(), reason(code)));
  }
}

void check_writable(const fs::path& name) {
  const fs::path path = target_of(name);
  std::error_code ignored;
  if (!path.has_filename() || fs::is_directory(path, ignored)) {
    throw Error(fmt::format("cannot write '{}': it names a folder, name a file", path.string()));
  }
  fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  while (!fs::exists(folder, error)) {
    if (error && error != std::errc::no_such_file_or_directory) break;
    folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  }
  // Only making a file tells: what the rights say may be overruled either way.
  std::string probe = (folder / ".zero-XXXXXX").string();
  const int file = ::mkstemp(probe.data());
  if (file < 0) {
    throw Error(
        fmt::format("cannot write '{}': {}: {}; name a file in a folder that can be "
                    "written to",
                    path.string(), folder.string(), reason(errno)));
  }
  ::close(file);
  fs::remove(probe, ignored);
}

void write_json(const fs::path& path, const Json& document) {
  // Bytes that are not UTF-8, as a command line may hold, are replaced rather than refused.
  const auto replace = Json::error_handler_t::replace;
  write_file(path, document.dump(/*indent=*/2, ' ', /*ensure_ascii=*/false, replace) + "\n");
}

Json read_json(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    throw Error(fmt::format("cannot read '{}': there is no such file", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw Error(fmt::format("cannot read '{}': {}", path.string(), reason(errno)));
  try {
    return Json::parse(text, bounded_depth(fmt::format("'{}'", path.string())));
  } catch (const Json::exception& problem) {
    throw Error(fmt::format("'{}' is not JSON: {}", path.string(), problem.what()));
  }
}

Json run_metadata(int argc, const char* const* argv) {
  Json command_line = Json::array();
  for (int i = 0; i < argc; ++i) command_line.push_back(argv[i]);
  const auto now = std::chrono::system_clock::now();
  return {
      {"project_version", ZERO_VERSION},
      {"libtorch_version", TORCH_VERSION},
      {"compiler",
#if defined(__clang__)
       "clang " __clang_version__
#else
       "g++ " __VERSION__
#endif
      },
      {"command_line", std::move(command_line)},
      {"cores", std::thread::hardware_concurrency()},
      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                           fmt::gmtime(std::chrono::system_clock::to_time_t(now)))},
  };
}

}  // namespace zero::base

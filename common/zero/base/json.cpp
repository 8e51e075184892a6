#include <fmt/chrono.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cerrno>
#include <chrono>
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

namespace fs = std::filesystem;

void write_json(const fs::path& path, const Json& document) {
  // Bytes that are not UTF-8, which a command line may hold, are replaced, not refused.
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
  if (!file) {
    throw Error(
        fmt::format("cannot read '{}': {}", path.string(), std::generic_category().message(errno)));
  }
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

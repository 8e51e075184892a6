#include "json.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/mapped_file.hpp>

namespace zero::tools {

namespace fs = std::filesystem;

void write_json(const fs::path& path, const Json& document) {
  // Bytes that are not UTF-8, which a command line may hold, are replaced, not refused.
  const auto replace = Json::error_handler_t::replace;
  base::write_file(path, document.dump(/*indent=*/2, ' ', /*ensure_ascii=*/false, replace) + "\n");
}

Json read_json(const fs::path& path) {
  const base::MappedFile file(path, fmt::format("cannot read '{}'", path.string()));
  try {
    return Json::parse(file.bytes(), base::bounded_depth(fmt::format("'{}'", path.string())));
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
      {"command_line", std::move(command_line)},
      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                           fmt::gmtime(std::chrono::system_clock::to_time_t(now)))},
  };
}

}  // namespace zero::tools

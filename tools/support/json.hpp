#pragma once

#include <nlohmann/json_fwd.hpp>

#include <zero/base/atomic_file.hpp>

namespace zero::tools {

/// JSON whose objects keep the order in which keys were written, so that files are easy to read.
using Json = nlohmann::ordered_json;

/// Writes `document` to `path` as write_file() does, indented by two spaces. Numbers that are not
/// finite become null, because JSON cannot express them.
void write_json(const std::filesystem::path& path, const Json& document);

/// Reads a JSON file. Throws zero::Error if it is missing, unreadable, not JSON, or nested deeper
/// than kDeepestJson (json_depth.hpp).
Json read_json(const std::filesystem::path& path);

/// Metadata for a result: "project_version", "libtorch_version", "command_line" (a list), "date"
/// (now, UTC, ISO 8601).
Json run_metadata(int argc, const char* const* argv);

}  // namespace zero::tools

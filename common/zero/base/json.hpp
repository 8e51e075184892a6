#pragma once

#include <nlohmann/json_fwd.hpp>

#include <zero/base/atomic_file.hpp>

namespace zero::base {

/// JSON whose objects keep the order in which their keys were written, so that a person finds
/// things in a file where the program put them.
using Json = nlohmann::ordered_json;

/// Writes `document` to `path` as write_file() does, indented by two spaces. Numbers that are not
/// finite become null, since JSON has no word for them.
void write_json(const std::filesystem::path& path, const Json& document);

/// Reads a JSON file. Throws zero::Error if it is missing, unreadable, not JSON, or nested deeper
/// than kDeepestJson (json_depth.hpp).
Json read_json(const std::filesystem::path& path);

/// What a result needs to be understood later: "project_version", "libtorch_version", "compiler",
/// "command_line" (a list), "cores" (that this process may use), "date" (now, UTC, ISO 8601).
Json run_metadata(int argc, const char* const* argv);

}  // namespace zero::base

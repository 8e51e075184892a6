#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace zero::base {

/// JSON whose objects keep the order in which their keys were written, so that a person finds
/// things in a file where the program put them.
using Json = nlohmann::ordered_json;

/// Writes `contents` to `path`, whole or not at all: first to a temporary file beside it, which
/// then takes its name. Makes the folder if there is none. An existing file stays as it is until
/// the new one is complete. Blocks until the bytes are on the disk.
/// Throws zero::Error, naming the path and the system's reason, if that cannot be done.
void write_file(const std::filesystem::path& path, std::string_view contents);

/// Throws zero::Error if write_file(path) would, as far as one can know before: for a program to
/// ask before it works for minutes. Makes and leaves nothing, neither file nor folder.
void check_writable(const std::filesystem::path& path);

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

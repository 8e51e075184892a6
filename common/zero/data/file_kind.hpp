#pragma once

#include <filesystem>

namespace zero::data {

/// The kind of a data file.
enum class FileKind {
  kTokens,     ///< a token file of either kind (see TokenFile)
  kParquet,    ///< an Apache Parquet file; only prepare.py reads it
  kJsonLines,  ///< its first line is a JSON object
  kText,       ///< anything else, including plain text and CSV
};

/// The kind of the file at `path`, by its first bytes, whatever its name.
/// @throws zero::Error if it is missing, empty, not a regular file, or unreadable; or if its suffix
/// or its header is that of a token file and its first bytes are not, so that it is damaged.
FileKind file_kind(const std::filesystem::path& path);

}  // namespace zero::data

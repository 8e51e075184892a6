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

/// The kind of the file at `path`, by its first bytes and not by its name.
/// @throws zero::Error if it is missing, empty, not a regular file or unreadable; or damaged: with
/// the suffix or the header fields of a token file, but without its first bytes.
FileKind file_kind(const std::filesystem::path& path);

}  // namespace zero::data

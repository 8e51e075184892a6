#pragma once

#include <filesystem>

namespace zero::data {

/// What a data file is.
enum class FileKind {
  kTokens,     ///< a token file of either kind (see TokenFile)
  kParquet,    ///< an Apache Parquet file, which only prepare.py reads
  kJsonLines,  ///< its first line is a JSON object
  kText,       ///< anything else: text, CSV among it
};

/// Says by the first bytes of `path`, whatever its name, what it is.
/// @throws zero::Error where it is missing, empty, not a regular file, or unreadable; or where its
/// suffix or its header is that of a token file and its first bytes are not, so that it is damaged.
FileKind file_kind(const std::filesystem::path& path);

}  // namespace zero::data

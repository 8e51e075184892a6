#pragma once

#include <filesystem>

#include "token_stream.hpp"

namespace zero::data {

/// Whether the file at `path` is meant as a token file, even a damaged one, whose bytes would be
/// trained on if they were read as text: it has the suffix .tokens, or begins with the length of a
/// header below 2^32, or a header with metadata begins behind the length.
/// @throws zero::Error if it is missing, empty, not a regular file or unreadable.
bool is_token_file(const std::filesystem::path& path);

/// The tokens of a token file, mapped into memory and checked: safetensors, with the tensor and the
/// metadata that docs/token-files.md explains. Its pages are not allocated by this process, and
/// ranks on one machine share one copy.
///
/// Opening checks the whole file (its checksum, every id below the vocabulary), then releases the
/// pages, so the resident set holds only what is used later. The mapping lives as long as any copy
/// of the stream. Replace a file in use by renaming another over it, as prepare.py does; truncating
/// it ends the program. Nothing is communicated.
/// @throws zero::Error as is_token_file() and safetensors::File, and with the path and the reason
/// if the file is not a token file, damaged (checksum), or inconsistent (ids of another dtype or
/// out of range).
TokenStream read_token_file(const std::filesystem::path& path);

}  // namespace zero::data

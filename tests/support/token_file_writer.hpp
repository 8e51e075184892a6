#pragma once

#include <filesystem>

#include <zero/safetensors/safetensors.hpp>

#include "records.hpp"

namespace zero::testing {

/// What is in a token file.
struct TokenFileParts {
  safetensors::NamedTensors tensors;
  safetensors::Metadata metadata;  ///< without the checksum
};

/// The parts of a token file, as in docs/token-files.md.
TokenFileParts parts_of(const data::TokenStream& stream);

/// Writes a file of these parts, whatever they are, with a checksum that is right.
void write_token_file(const std::filesystem::path& path, const TokenFileParts& parts);

/// Writes `stream` as a token file.
inline void write_token_file(const std::filesystem::path& path, const data::TokenStream& stream) {
  write_token_file(path, parts_of(stream));
}

}  // namespace zero::testing

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
TokenFileParts parts_of(const data::Records& records);

/// Writes a file of these parts, whatever they are, with a checksum that is right.
void write_token_file(const std::filesystem::path& path, const TokenFileParts& parts);

/// Writes `stream` or `records` as a token file.
template <typename Tokens>
void write_token_file(const std::filesystem::path& path, const Tokens& tokens) {
  write_token_file(path, parts_of(tokens));
}

}  // namespace zero::testing

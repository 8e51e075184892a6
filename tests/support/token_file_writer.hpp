#pragma once

#include <filesystem>

#include <zero/data/token_stream.hpp>

namespace zero::testing {

/// Writes `stream` as a token file: ids of 2 bytes up to a vocabulary of 65536, of 4 above.
void write_token_file(const std::filesystem::path& path, const data::TokenStream& stream);

/// Writes `records` as a token file.
void write_token_file(const std::filesystem::path& path, const data::Records& records);

}  // namespace zero::testing

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/data/token_stream.hpp>

/// Tokens that several tests of data files use.
namespace zero::testing {

inline const std::string kSomeTokenizer =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Tokens in memory.
inline data::TokenStream stream_of(const std::vector<std::int64_t>& ids, std::int64_t vocabulary,
                                   const std::string& tokenizer = data::kByteTokenizer) {
  const auto kept = std::make_shared<const std::vector<std::uint32_t>>(ids.begin(), ids.end());
  return {kept, kept->data(), /*width=*/4, std::ssize(ids), vocabulary, tokenizer};
}

/// All ids of a stream.
inline std::vector<std::int64_t> ids_of(const data::TokenStream& tokens) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens.size()));
  tokens.copy(0, ids);
  return ids;
}

}  // namespace zero::testing

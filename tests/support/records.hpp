#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <zero/data/token_stream.hpp>

/// Small records that several tests of data files use.
namespace zero::testing {

inline const std::string kSomeTokenizer =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// All ids of a stream.
inline std::vector<std::int64_t> ids_of(const data::TokenStream& tokens) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens.size()));
  tokens.copy(0, ids);
  return ids;
}

/// Of five classes, with ids that need two bytes.
inline data::Records three_records() {
  const std::vector<data::Record> records{{4, {7, 8, 9}}, {0, {10}}, {2, {11, 300}}};
  return data::Records::from(records, /*classes=*/5, /*vocabulary=*/301, /*pad_id=*/6,
                             kSomeTokenizer);
}

/// The text of record `index`, whose tokens are bytes.
inline std::string text_of(const data::Records& records, std::int64_t index) {
  std::string text;
  const auto begin = static_cast<std::int64_t>(records.offsets[static_cast<std::size_t>(index)]);
  for (std::int64_t i = 0; i < records.length(index); ++i) {
    text += static_cast<char>(records.tokens[begin + i]);
  }
  return text;
}

}  // namespace zero::testing

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

/// The records [begin, end).
inline data::Records part_of(const data::Records& records, std::size_t begin, std::size_t end) {
  std::vector<data::Record> part;
  for (std::size_t i = begin; i < end; ++i) {
    part.push_back({records.labels[i], {}});
    part.back().tokens.resize(records.offsets[i + 1] - records.offsets[i]);
    records.tokens.copy(static_cast<std::int64_t>(records.offsets[i]), part.back().tokens);
  }
  return data::Records::from(part, records.classes, records.tokens.vocabulary(), records.pad_id,
                             records.tokens.tokenizer_fingerprint());
}

/// The text of record `index`, whose tokens are bytes.
inline std::string text_of(const data::Records& records, std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  const std::vector<std::int64_t> ids = ids_of(part_of(records, i, i + 1).tokens);
  return {ids.begin(), ids.end()};
}

}  // namespace zero::testing

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/data/token_stream.hpp>

/// Small records that several tests of data files use.
namespace zero::testing {

inline const std::string kSomeTokenizer =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Tokens in memory.
inline data::TokenStream stream_of(const std::vector<std::int64_t>& ids, std::int64_t vocabulary,
                                   const std::string& tokenizer = data::kByteTokenizer) {
  const auto kept = std::make_shared<const std::vector<std::uint32_t>>(ids.begin(), ids.end());
  return {kept, kept->data(), /*width=*/4, std::ssize(ids), vocabulary, tokenizer};
}

/// One labelled text.
struct Record {
  std::int64_t label = 0;
  std::vector<std::int64_t> tokens;
};

/// Labelled texts in memory.
inline data::Records records_of(const std::vector<Record>& records, std::int64_t classes,
                                std::int64_t vocabulary, std::int64_t pad_id = 0,
                                const std::string& tokenizer = data::kByteTokenizer) {
  struct Kept {
    std::vector<std::int64_t> offsets{0}, labels, tokens;
  };
  const auto kept = std::make_shared<Kept>();
  for (const auto& [label, tokens] : records) {
    kept->tokens.insert(kept->tokens.end(), tokens.begin(), tokens.end());
    kept->offsets.push_back(std::ssize(kept->tokens));
    kept->labels.push_back(label);
  }
  return {stream_of(kept->tokens, vocabulary, tokenizer),
          kept->offsets,
          kept->labels,
          classes,
          pad_id,
          kept};
}

/// All ids of a stream.
inline std::vector<std::int64_t> ids_of(const data::TokenStream& tokens) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens.size()));
  tokens.copy(0, ids);
  return ids;
}

/// Of five classes, with ids that need two bytes.
inline data::Records three_records() {
  return records_of({{4, {7, 8, 9}}, {0, {10}}, {2, {11, 300}}}, /*classes=*/5,
                    /*vocabulary=*/301, /*pad_id=*/6, kSomeTokenizer);
}

/// The records [begin, end).
inline data::Records part_of(const data::Records& records, std::size_t begin, std::size_t end) {
  std::vector<Record> part;
  for (std::size_t i = begin; i < end; ++i) {
    part.push_back({records.labels[i], {}});
    part.back().tokens.resize(
        static_cast<std::size_t>(records.length(static_cast<std::int64_t>(i))));
    records.tokens.copy(records.offsets[i], part.back().tokens);
  }
  return records_of(part, records.classes, records.tokens.vocabulary(), records.pad_id,
                    records.tokens.tokenizer_fingerprint());
}

/// The text of record `index`, whose tokens are bytes.
inline std::string text_of(const data::Records& records, std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  const std::vector<std::int64_t> ids = ids_of(part_of(records, i, i + 1).tokens);
  return {ids.begin(), ids.end()};
}

}  // namespace zero::testing

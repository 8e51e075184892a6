#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/data/token_stream.hpp>

namespace zero::data {

namespace {

/// Widens ids of type T. Uses memcpy, because ids in a mapped file may be unaligned.
template <typename T>
void widen(const void* ids, std::int64_t begin, std::span<std::int64_t> out) {
  const char* source = static_cast<const char*>(ids) + begin * static_cast<std::int64_t>(sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T id;
    std::memcpy(&id, source + i * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int64_t>(id);
  }
}

template <typename T>
TokenStream narrow(std::span<const std::int64_t> ids, std::int64_t vocabulary,
                   const std::string& tokenizer_fingerprint) {
  auto kept = std::make_shared<std::vector<T>>(ids.begin(), ids.end());
  const void* data = kept->data();
  return {std::move(kept),      data, sizeof(T), static_cast<std::int64_t>(ids.size()), vocabulary,
          tokenizer_fingerprint};
}

/// Hashes numbers as 8 bytes each, so that the digest does not depend on the width of stored ids.
void add_numbers(base::Sha256& hash, std::span<const std::int64_t> numbers) {
  hash.add(numbers.data(), numbers.size_bytes());
}

void add_tokens(base::Sha256& hash, const TokenStream& tokens) {
  std::vector<std::int64_t> piece(4096);
  for (std::int64_t at = 0; at < tokens.size(); at += std::ssize(piece)) {
    piece.resize(static_cast<std::size_t>(std::min(std::ssize(piece), tokens.size() - at)));
    tokens.copy(at, piece);
    add_numbers(hash, piece);
  }
}

}  // namespace

TokenStream::TokenStream(std::shared_ptr<const void> owner, const void* ids, int width,
                         std::int64_t size, std::int64_t vocabulary,
                         std::string tokenizer_fingerprint)
    : owner_(std::move(owner)),
      ids_(ids),
      width_(width),
      size_(size),
      vocabulary_(vocabulary),
      tokenizer_fingerprint_(std::move(tokenizer_fingerprint)) {}

TokenStream TokenStream::from_bytes(std::string bytes) {
  auto kept = std::make_shared<std::string>(std::move(bytes));
  const void* data = kept->data();
  const auto size = static_cast<std::int64_t>(kept->size());
  return {std::move(kept), data, /*width=*/1, size, kByteVocabulary, kByteTokenizer};
}

TokenStream TokenStream::from_ids(std::span<const std::int64_t> ids, std::int64_t vocabulary,
                                  const std::string& tokenizer_fingerprint) {
  if (vocabulary < 1 || vocabulary > kLargestVocabulary) {
    throw Error(fmt::format("a vocabulary of {} tokens; it must be 1 to {}", vocabulary,
                            kLargestVocabulary));
  }
  const auto outside =
      std::ranges::find_if(ids, [&](std::int64_t id) { return id < 0 || id >= vocabulary; });
  if (outside != ids.end()) {
    throw Error(fmt::format("token {} is {}, outside the vocabulary 0 to {}", outside - ids.begin(),
                            *outside, vocabulary - 1));
  }
  return vocabulary <= kByteVocabulary
             ? narrow<std::uint8_t>(ids, vocabulary, tokenizer_fingerprint)
             : narrow<std::uint32_t>(ids, vocabulary, tokenizer_fingerprint);
}

void TokenStream::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  const std::int64_t end = begin + std::ssize(out);
  if (begin < 0 || end > size_) {
    throw Error(fmt::format("tokens [{}, {}) asked for, there are {}", begin, end, size_));
  }
  switch (width_) {
    case 1:
      return widen<std::uint8_t>(ids_, begin, out);
    case 2:
      return widen<std::uint16_t>(ids_, begin, out);
    default:
      return widen<std::uint32_t>(ids_, begin, out);
  }
}

std::string TokenStream::fingerprint() const {
  base::Sha256 hash;
  hash.add("stream").add(tokenizer_fingerprint_);
  const std::int64_t shape[] = {vocabulary_, size_};
  add_numbers(hash, shape);
  add_tokens(hash, *this);
  return hash.hex();
}

Records Records::from(std::span<const Record> records, std::int64_t classes,
                      std::int64_t vocabulary, std::int64_t pad_id,
                      const std::string& tokenizer_fingerprint) {
  if (records.empty()) throw Error("no records: at least one labelled text is needed");
  if (pad_id < 0 || pad_id >= vocabulary) {
    throw Error(fmt::format("pad id {} is outside the vocabulary 0 to {}", pad_id, vocabulary - 1));
  }
  struct Kept {
    std::vector<std::uint64_t> offsets{0};
    std::vector<std::uint32_t> labels;
  };
  auto kept = std::make_shared<Kept>();
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    if (record.tokens.empty()) throw Error(fmt::format("record {} has no tokens", i));
    if (record.label < 0 || record.label >= classes) {
      throw Error(
          fmt::format("record {} has label {}, outside 0 to {}", i, record.label, classes - 1));
    }
    tokens.insert(tokens.end(), record.tokens.begin(), record.tokens.end());
    kept->offsets.push_back(tokens.size());
    kept->labels.push_back(static_cast<std::uint32_t>(record.label));
  }
  return {TokenStream::from_ids(tokens, vocabulary, tokenizer_fingerprint),
          kept->offsets,
          kept->labels,
          classes,
          pad_id,
          kept};
}

std::int64_t Records::length(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return static_cast<std::int64_t>(offsets[i + 1] - offsets[i]);
}

std::string Records::fingerprint() const {
  base::Sha256 hash;
  hash.add("records").add(tokens.tokenizer_fingerprint());
  const std::int64_t shape[] = {tokens.vocabulary(), classes, pad_id, size()};
  add_numbers(hash, shape);
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t row[] = {labels[static_cast<std::size_t>(i)], length(i)};
    add_numbers(hash, row);
  }
  add_tokens(hash, tokens);
  return hash.hex();
}

}  // namespace zero::data

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/data/token_stream.hpp>

namespace zero::data {

const std::string kByteTokenizer(64, '0');

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

void check_range(std::int64_t begin, std::int64_t end, std::int64_t size, const char* what) {
  if (begin < 0 || end < begin || end > size) {
    throw Error(fmt::format("{} [{}, {}) asked for, there are {}", what, begin, end, size));
  }
}

void check_vocabulary(std::int64_t vocabulary) {
  if (vocabulary < 1 || vocabulary > kLargestVocabulary) {
    throw Error(fmt::format("a vocabulary of {} tokens; it must be 1 to {}", vocabulary,
                            kLargestVocabulary));
  }
}

/// Hashes numbers as 8 bytes each, so that the digest does not depend on the width of stored ids.
void add_numbers(base::Sha256& hash, std::span<const std::int64_t> numbers) {
  hash.add(numbers.data(), numbers.size_bytes());
}

void add_tokens(base::Sha256& hash, const TokenStream& tokens, std::int64_t begin,
                std::int64_t end) {
  constexpr std::int64_t kPiece = 4096;
  std::vector<std::int64_t> piece(static_cast<std::size_t>(kPiece));
  for (std::int64_t at = begin; at < end; at += kPiece) {
    const auto count = static_cast<std::size_t>(std::min(kPiece, end - at));
    const std::span<std::int64_t> part(piece.data(), count);
    tokens.copy(at, part);
    add_numbers(hash, part);
  }
}

}  // namespace

TokenStream::TokenStream() : tokenizer_fingerprint_(kByteTokenizer) {}

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
  check_vocabulary(vocabulary);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary) {
      throw Error(
          fmt::format("token {} is {}, outside the vocabulary 0 to {}", i, ids[i], vocabulary - 1));
    }
  }
  if (vocabulary <= 1 << 8) {
    return narrow<std::uint8_t>(ids, vocabulary, tokenizer_fingerprint);
  }
  if (vocabulary <= 1 << 16) {
    return narrow<std::uint16_t>(ids, vocabulary, tokenizer_fingerprint);
  }
  return narrow<std::uint32_t>(ids, vocabulary, tokenizer_fingerprint);
}

std::int64_t TokenStream::operator[](std::int64_t index) const {
  std::int64_t id = 0;
  copy(index, {&id, 1});
  return id;
}

void TokenStream::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  check_range(begin, begin + static_cast<std::int64_t>(out.size()), size_, "tokens");
  switch (width_) {
    case 1:
      return widen<std::uint8_t>(ids_, begin, out);
    case 2:
      return widen<std::uint16_t>(ids_, begin, out);
    default:
      return widen<std::uint32_t>(ids_, begin, out);
  }
}

TokenStream TokenStream::slice(std::int64_t begin, std::int64_t end) const {
  check_range(begin, end, size_, "tokens");
  return {owner_,      static_cast<const char*>(ids_) + begin * width_,
          width_,      end - begin,
          vocabulary_, tokenizer_fingerprint_};
}

std::string TokenStream::fingerprint() const {
  base::Sha256 hash;
  hash.add("stream").add(tokenizer_fingerprint_);
  const std::int64_t shape[] = {vocabulary_, size_};
  add_numbers(hash, shape);
  add_tokens(hash, *this, 0, size_);
  return hash.hex();
}

Records Records::from(std::span<const Record> records, std::int64_t classes,
                      std::int64_t vocabulary, std::int64_t pad_id,
                      const std::string& tokenizer_fingerprint) {
  if (records.empty()) {
    throw Error("no records: at least one labelled text is needed");
  }
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
    if (record.tokens.empty()) {
      throw Error(fmt::format("record {} has no tokens", i));
    }
    if (record.label < 0 || record.label >= classes) {
      throw Error(
          fmt::format("record {} has label {}, outside 0 to {}", i, record.label, classes - 1));
    }
    tokens.insert(tokens.end(), record.tokens.begin(), record.tokens.end());
    kept->offsets.push_back(tokens.size());
    kept->labels.push_back(static_cast<std::uint32_t>(record.label));
  }
  Records made;
  made.tokens = TokenStream::from_ids(tokens, vocabulary, tokenizer_fingerprint);
  made.offsets = kept->offsets;
  made.labels = kept->labels;
  made.classes = classes;
  made.pad_id = pad_id;
  made.owner = std::move(kept);
  return made;
}

std::int64_t Records::length(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return static_cast<std::int64_t>(offsets[i + 1] - offsets[i]);
}

Records Records::slice(std::int64_t begin, std::int64_t end) const {
  check_range(begin, end, size(), "records");
  Records part = *this;
  const auto first = static_cast<std::size_t>(begin);
  const auto count = static_cast<std::size_t>(end - begin);
  part.offsets = offsets.subspan(first, count + 1);
  part.labels = labels.subspan(first, count);
  return part;
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
  add_tokens(hash, tokens, static_cast<std::int64_t>(offsets.front()),
             static_cast<std::int64_t>(offsets.back()));
  return hash.hex();
}

std::int64_t training_part(std::int64_t size, double validation_fraction) {
  if (!(validation_fraction > 0 && validation_fraction < 1)) {
    throw Error(
        fmt::format("validation fraction {}; it must be above 0 and below 1", validation_fraction));
  }
  const std::int64_t validation = std::llround(static_cast<double>(size) * validation_fraction);
  if (validation < 1 || validation >= size) {
    throw Error(fmt::format("a validation fraction of {} of {} items leaves one part empty",
                            validation_fraction, size));
  }
  return size - validation;
}

std::pair<TokenStream, TokenStream> split(const TokenStream& stream, double validation_fraction) {
  const std::int64_t cut = training_part(stream.size(), validation_fraction);
  return {stream.slice(0, cut), stream.slice(cut, stream.size())};
}

std::pair<Records, Records> split(const Records& records, double validation_fraction) {
  const std::int64_t cut = training_part(records.size(), validation_fraction);
  return {records.slice(0, cut), records.slice(cut, records.size())};
}

}  // namespace zero::data

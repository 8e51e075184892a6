#include "token_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>

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

}  // namespace zero::data

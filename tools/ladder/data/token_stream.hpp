#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace zero::data {

/// Vocabulary of text read as bytes: token ids 0 to 255.
inline constexpr std::int64_t kByteVocabulary = 256;

/// Largest vocabulary that a token file or stream may state (ids fit a signed 32-bit integer).
inline constexpr std::int64_t kLargestVocabulary = std::int64_t{1} << 31;

/// The tokenizer_fingerprint() of text read as bytes: 64 zeros. For every other text it is the
/// SHA-256 of the tokenizer.json that made the tokens.
inline const std::string kByteTokenizer(64, '0');

/// A constant run of token ids, in memory or in a mapped file, with an owner that keeps it alive.
///
/// Copies are cheap and share the ids. Ids are stored in 1, 2 or 4 bytes each (little
/// endian, unsigned) and returned as int64, the dtype of an embedding's index.
class TokenStream {
 public:
  /// An empty stream of bytes.
  TokenStream() = default;

  /// One token per byte, vocabulary 256.
  static TokenStream from_bytes(std::string bytes);

  /// Tokens that `owner` keeps alive at `ids`: `size` ids of `width` bytes (1, 2 or 4). The caller
  /// has checked that they are below `vocabulary`.
  TokenStream(std::shared_ptr<const void> owner, const void* ids, int width, std::int64_t size,
              std::int64_t vocabulary, std::string tokenizer_fingerprint);

  std::int64_t size() const { return size_; }
  std::int64_t vocabulary() const { return vocabulary_; }
  const std::string& tokenizer_fingerprint() const { return tokenizer_fingerprint_; }

  /// Writes the tokens [begin, begin + out.size()) to `out`.
  /// @throws zero::Error if the stream does not have them all.
  void copy(std::int64_t begin, std::span<std::int64_t> out) const;

  /// 64 hexadecimal digits, the same for two streams only if ids, vocabulary and tokenizer are
  /// equal, wherever the ids are stored. Reads the whole stream.
  std::string fingerprint() const;

 private:
  std::shared_ptr<const void> owner_;
  const void* ids_ = nullptr;
  int width_ = 1;
  std::int64_t size_ = 0;
  std::int64_t vocabulary_ = kByteVocabulary;
  std::string tokenizer_fingerprint_ = kByteTokenizer;
};

}  // namespace zero::data

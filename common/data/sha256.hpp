#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace zero::data {

/// The 32 bytes of a SHA-256 digest (FIPS 180-4).
using Digest = std::array<std::uint8_t, 32>;

/// SHA-256 of bytes that arrive in pieces. One object, one digest.
class Sha256 {
 public:
  /// @throws zero::Error where the crypto library offers no SHA-256.
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  /// Adds `size` bytes at `data`.
  Sha256& add(const void* data, std::size_t size);
  Sha256& add(const std::string& text) { return add(text.data(), text.size()); }

  /// The digest of everything added. Call it once, last.
  Digest digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// 64 lower-case hexadecimal digits.
std::string to_hex(const Digest& digest);

/// The inverse of to_hex(). @throws zero::Error where `hex` is not 64 hexadecimal digits.
Digest digest_from_hex(const std::string& hex);

}  // namespace zero::data

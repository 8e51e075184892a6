#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of OpenSSL

namespace zero::base {

/// The 32 bytes of a SHA-256 digest (FIPS 180-4).
using Digest = std::array<std::uint8_t, 32>;

/// SHA-256 of bytes that arrive in pieces. Files, data sets or weights count as equal if their
/// digests are. The result depends only on the bytes and their order, not on the pieces. Computed
/// by OpenSSL.
class Sha256 {
 public:
  /// @throws zero::Error if the crypto library offers no SHA-256.
  Sha256();

  /// Adds `size` bytes at `data`. @throws zero::Error if the crypto library refuses.
  Sha256& add(const void* data, std::size_t size);
  Sha256& add(std::string_view text) { return add(text.data(), text.size()); }

  /// The digest of everything added so far. More may be added afterwards.
  Digest digest() const;

  /// digest() as 64 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// 64 lower-case hexadecimal digits.
std::string to_hex(const Digest& digest);

}  // namespace zero::base

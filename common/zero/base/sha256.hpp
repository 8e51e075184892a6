#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of OpenSSL

namespace zero::base {

/// SHA-256 (FIPS 180-4) of bytes that arrive in pieces. Files, data sets or weights count as equal
/// if their digests are. The result depends only on the bytes and their order, not on the pieces.
/// Computed by OpenSSL.
class Sha256 {
 public:
  /// @throws zero::Error if the crypto library offers no SHA-256.
  Sha256();

  /// Adds `size` bytes at `data`. @throws zero::Error if the crypto library refuses.
  Sha256& add(const void* data, std::size_t size);
  Sha256& add(std::string_view text) { return add(text.data(), text.size()); }

  /// The digest of everything added so far, as 64 lower-case hexadecimal digits. More may be added
  /// afterwards.
  std::string hex() const;

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace zero::base

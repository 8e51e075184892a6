#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <cstdint>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>

namespace zero::base {

namespace {

void check(bool ok, const char* what) {
  if (!ok) throw Error(fmt::format("OpenSSL's SHA-256 failed to {}", what));
}

}  // namespace

Sha256::Sha256() : context_(nullptr, &EVP_MD_CTX_free) {
  // Else OpenSSL ends when the program does, and what computes a digest then crashes.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  context_.reset(EVP_MD_CTX_new());
  check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), /*impl=*/nullptr) == 1,
        "start");
}

Sha256& Sha256::add(const void* data, std::size_t size) {
  check(EVP_DigestUpdate(context_.get(), data, size) == 1, "take bytes");
  return *this;
}

std::string Sha256::hex() const {
  // OpenSSL cannot add to a finished context, so finish a copy.
  const Sha256 copy;
  std::array<std::uint8_t, 32> digest{};
  check(EVP_MD_CTX_copy_ex(copy.context_.get(), context_.get()) == 1 &&
            EVP_DigestFinal_ex(copy.context_.get(), digest.data(), /*s=*/nullptr) == 1,
        "finish");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace zero::base

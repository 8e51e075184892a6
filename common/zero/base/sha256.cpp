#include <fmt/format.h>
#include <openssl/evp.h>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>

namespace zero::base {

namespace {

void check(bool ok, const char* what) {
  if (!ok) throw Error(fmt::format("OpenSSL's SHA-256 failed to {}", what));
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  check(context_->handle != nullptr &&
            EVP_DigestInit_ex(context_->handle, EVP_sha256(), /*impl=*/nullptr) == 1,
        "start");
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::add(const void* data, std::size_t size) {
  check(EVP_DigestUpdate(context_->handle, data, size) == 1, "take bytes");
  return *this;
}

Digest Sha256::digest() const {
  // Finishing ends a context, so this finishes a copy.
  const Context copy;
  Digest digest{};
  check(copy.handle != nullptr && EVP_MD_CTX_copy_ex(copy.handle, context_->handle) == 1 &&
            EVP_DigestFinal_ex(copy.handle, digest.data(), /*s=*/nullptr) == 1,
        "finish");
  return digest;
}

std::string Sha256::hex() const { return to_hex(digest()); }

std::string to_hex(const Digest& digest) {
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += fmt::format("{:02x}", byte);
  }
  return hex;
}

Digest digest_from_hex(const std::string& hex) {
  Digest digest{};
  const auto wrong = hex.find_first_not_of("0123456789abcdefABCDEF");
  if (hex.size() != 2 * digest.size() || wrong != std::string::npos) {
    throw Error(fmt::format("'{}' is not a SHA-256 digest: 64 hexadecimal digits", hex));
  }
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return digest;
}

}  // namespace zero::base

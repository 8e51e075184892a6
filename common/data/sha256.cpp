#include <fmt/format.h>
#include <openssl/evp.h>

#include <zero/data/sha256.hpp>
#include <zero/error.hpp>

namespace zero::data {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (EVP_DigestInit_ex(context_->handle, EVP_sha256(), /*impl=*/nullptr) != 1) {
    throw Error("this OpenSSL offers no SHA-256, which checks the data files");
  }
}

Sha256::~Sha256() = default;

Sha256& Sha256::add(const void* data, std::size_t size) {
  EVP_DigestUpdate(context_->handle, data, size);
  return *this;
}

Digest Sha256::digest() {
  Digest digest{};
  EVP_DigestFinal_ex(context_->handle, digest.data(), /*s=*/nullptr);
  return digest;
}

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

}  // namespace zero::data

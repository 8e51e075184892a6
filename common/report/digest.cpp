#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <zero/error.hpp>
#include <zero/report/digest.hpp>

namespace zero::report {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

void check(bool ok, const char* what) {
  if (!ok) throw Error(fmt::format("OpenSSL's SHA-256 failed to {}", what));
}

}  // namespace

struct Digest::State {
  Context context{EVP_MD_CTX_new()};
};

Digest::Digest() : state_(std::make_unique<State>()) {
  check(state_->context && EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1,
        "start");
}

Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1, "take bytes");
}

void Digest::update(std::string_view text) { update(std::as_bytes(std::span(text))); }

std::string Digest::hex() const {
  // Finishing ends a context, so a copy is finished.
  const Context copy(EVP_MD_CTX_new());
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  check(copy && EVP_MD_CTX_copy_ex(copy.get(), state_->context.get()) == 1 &&
            EVP_DigestFinal_ex(copy.get(), bytes.data(), &size) == 1,
        "finish");
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace zero::report

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace zero::report {

/// SHA-256 of bytes that arrive in pieces: two sets of weights are reported as identical if their
/// digests are. The result depends on the bytes and their order only, not on how they were cut
/// into pieces. Computed by OpenSSL.
class Digest {
 public:
  /// Throws zero::Error if OpenSSL offers no SHA-256.
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  /// Appends bytes.
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);

  /// The digest of everything appended so far: 64 lower-case hexadecimal digits. More may be
  /// appended afterwards.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero::report

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>
#include <zero/report/digest.hpp>

namespace zero::report {
namespace {

std::string digest_of(std::string_view text) {
  Digest digest;
  digest.update(text);
  return digest.hex();
}

// The examples of the standard, FIPS 180-4.
TEST(Digest, IsSha256) {
  EXPECT_EQ(Digest().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Digest, DoesNotDependOnHowTheBytesAreCut) {
  const std::string text(100'000, 'a');
  Digest pieces;
  for (std::size_t at = 0; at < text.size(); at += 777) {
    pieces.update(std::string_view(text).substr(at, 777));
  }
  EXPECT_EQ(pieces.hex(), digest_of(text));
}

TEST(Digest, TakesBytesAndTextAlike) {
  const std::vector<std::byte> bytes = {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  Digest digest;
  digest.update(std::span(bytes));
  EXPECT_EQ(digest.hex(), digest_of("abc"));
}

TEST(Digest, CanGoOnAfterReading) {
  Digest digest;
  digest.update("ab");
  EXPECT_EQ(digest.hex(), digest_of("ab"));
  EXPECT_EQ(digest.hex(), digest_of("ab"));
  digest.update("c");
  EXPECT_EQ(digest.hex(), digest_of("abc"));
}

TEST(Digest, SeesOneBitAndTheOrder) {
  std::string bits(64, '\0');
  const std::string before = digest_of(bits);
  bits[63] = '\1';
  EXPECT_NE(digest_of(bits), before);
  EXPECT_NE(digest_of("ab"), digest_of("ba"));
}

TEST(Digest, Moves) {
  Digest first;
  first.update("abc");
  Digest second = std::move(first);
  EXPECT_EQ(second.hex(), digest_of("abc"));
}

}  // namespace
}  // namespace zero::report

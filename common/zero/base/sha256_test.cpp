#include <gtest/gtest.h>

#include <zero/base/sha256.hpp>

namespace zero::base {
namespace {

std::string digest_of(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.hex();
}

// The examples of the standard, FIPS 180-4.
TEST(Sha256, GivesTheExamplesOfTheStandard) {
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, DoesNotDependOnHowTheBytesAreCut) {
  const std::string text(100'000, 'a');
  Sha256 pieces;
  for (std::size_t at = 0; at < text.size(); at += 777) {
    pieces.add(std::string_view(text).substr(at, 777));
  }
  EXPECT_EQ(pieces.hex(), digest_of(text));
}

TEST(Sha256, CanGoOnAfterReadingAndMoving) {
  Sha256 hash;
  hash.add("ab");
  EXPECT_EQ(hash.hex(), digest_of("ab"));
  EXPECT_EQ(hash.hex(), digest_of("ab"));
  Sha256 moved = std::move(hash);
  moved.add("c");
  EXPECT_EQ(moved.hex(), digest_of("abc"));
}

}  // namespace
}  // namespace zero::base

#include <gtest/gtest.h>

#include <zero/base/fnv.hpp>

namespace zero::base {
namespace {

// The test vectors of the authors' page, 64-bit FNV-1a.
TEST(Fnv1a, HasThePublishedValues) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8ULL);
}

TEST(Fnv1a, TakesBytesAboveAsciiAsUnsigned) {
  // One byte 0xff by hand: (offset basis ^ 0xff) * prime.
  EXPECT_EQ(fnv1a("\xff"), (0xcbf29ce484222325ULL ^ 0xffULL) * 0x100000001b3ULL);
}

TEST(Fnv1a, AsADoubleKeepsTheHighest53Bits) {
  EXPECT_EQ(fnv1a_as_double("a"), static_cast<double>(0xaf63dc4c8601ec8cULL >> 11));
  EXPECT_LT(fnv1a_as_double("foobar"), 9007199254740992.0);
}

}  // namespace
}  // namespace zero::base

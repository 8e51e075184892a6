#include <gtest/gtest.h>

#include <zero/base/names.hpp>

namespace zero::base {
namespace {

TEST(UnknownNameMessage, ListsTheKnownOnes) {
  const std::vector<std::string> modes = {"ddp", "zero1"};
  EXPECT_EQ(unknown_name_message("mode", "zer1", modes),
            "unknown mode 'zer1'; known modes: ddp, zero1");
}

TEST(WithThousands, SetsCommas) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1000), "1,000");
  EXPECT_EQ(with_thousands(361821120), "361,821,120");
  EXPECT_EQ(with_thousands(-100), "-100");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
}

}  // namespace
}  // namespace zero::base

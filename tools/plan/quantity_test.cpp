#include "quantity.hpp"

#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>

namespace zero::plan {
namespace {

// figures.csv has what is read and what is refused.
TEST(Quantity, MemoryKeepsItsUnit) {
  EXPECT_EQ(parse_memory("24GB").unit, Unit::kGB);
  EXPECT_EQ(parse_memory("24 GiB").unit, Unit::kGiB);
  EXPECT_EQ(parse_memory("512MiB").unit, Unit::kMiB);
  EXPECT_EQ(parse_memory("1.5TiB").unit, Unit::kGiB);
  EXPECT_EQ(parse_count("361,821,120"), 361'821'120);
  testing::expect_error([] { parse_memory("24"); }, {"24GB (10^9)"});
}

TEST(Quantity, NeedsAreRoundedUpAndWhatThereIsDown) {
  EXPECT_EQ(at_least(24'000'000'000, Unit::kGB), "24.00 GB");
  EXPECT_EQ(at_least(24'000'000'001, Unit::kGB), "24.01 GB");
  EXPECT_EQ(at_most(23'999'999'999, Unit::kGB), "23.99 GB");
  EXPECT_EQ(at_least(1, Unit::kGiB), "0.01 GiB");
  EXPECT_EQ(at_most(1, Unit::kGiB), "0.00 GiB");
  EXPECT_EQ(at_least(kMiB, Unit::kMiB), "1.00 MiB");
  // The largest amount, and one byte more or less than a hundredth.
  EXPECT_EQ(at_least(16'000'000'010'000'000, Unit::kGB), "16000000.01 GB");
  EXPECT_EQ(at_least(16'000'000'010'000'001, Unit::kGB), "16000000.02 GB");
  EXPECT_EQ(at_most(16'000'000'009'999'999, Unit::kGB), "16000000.00 GB");
  EXPECT_EQ(in(24'000'000'001.0, Unit::kGB), "24.00");
}

}  // namespace
}  // namespace zero::plan

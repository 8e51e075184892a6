#include "quantity.hpp"

#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>

namespace zero::plan {
namespace {

TEST(Quantity, MemoryKeepsItsUnit) {
  EXPECT_EQ(parse_memory("24GB").bytes, 24'000'000'000);
  EXPECT_EQ(parse_memory("24GB").unit, Unit::kGB);
  EXPECT_EQ(parse_memory("24 GiB").bytes, 25'769'803'776);
  EXPECT_EQ(parse_memory("24 GiB").unit, Unit::kGiB);
  EXPECT_EQ(parse_memory("512MiB").bytes, 536'870'912);
  EXPECT_EQ(parse_memory("512MiB").unit, Unit::kMiB);
  EXPECT_EQ(parse_memory("1.5TiB").unit, Unit::kGiB);
  EXPECT_EQ(parse_memory("0.5kB").bytes, 500);
}

TEST(Quantity, MemoryWithoutAUnitIsRefused) {
  for (const char* text : {"24", "", "GB", "-1GB", "0GB", "nanGB", "infGB", "1e30GB", "24Gb",
                           "24 G B", "24GBs", "0x10GB", "1e400GB"}) {
    EXPECT_THROW(parse_memory(text), Error) << text;
  }
  testing::expect_error([] { parse_memory("24"); }, {"24GB (10^9)"});
}

TEST(Quantity, CountsAreWhole) {
  EXPECT_EQ(parse_count("361821120"), 361'821'120);
  EXPECT_EQ(parse_count("361,821,120"), 361'821'120);
  EXPECT_EQ(parse_count("1.5e9"), 1'500'000'000);
  EXPECT_EQ(parse_count("7B"), 7'000'000'000);
  EXPECT_EQ(parse_count("1.1B"), 1'100'000'000);
  EXPECT_EQ(parse_count("360M"), 360'000'000);
  for (const char* text : {"0", "-7", "1.5", "7b", "1e16", "", "seven", "1e9 parameters", "nan"}) {
    EXPECT_THROW(parse_count(text), Error) << text;
  }
}

TEST(Quantity, SpeedsAndTimesNeedUnits) {
  EXPECT_DOUBLE_EQ(parse_bandwidth("100GB/s"), 100e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("200Gbit/s"), 25e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("1GiB/s"), 1073741824.0);
  EXPECT_DOUBLE_EQ(parse_seconds("10us"), 10e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("0s"), 0);
  EXPECT_DOUBLE_EQ(parse_flops("150TFLOP/s"), 150e12);
  for (const char* text : {"100", "100GB", "0GB/s", "-1GB/s", "infGB/s", "nanGB/s", "0.9B/s",
                           "1e300GB/s", "1e306GB/s"}) {
    EXPECT_THROW(parse_bandwidth(text), Error) << text;
  }
  for (const char* text : {"10", "-1us", "10 minutes", "inf s", "nan s", "1000001s"})
    EXPECT_THROW(parse_seconds(text), Error);
  for (const char* text : {"150e12", "0TFLOP/s", "150TFLOPS", "1e-300FLOP/s", "1e308PFLOP/s"})
    EXPECT_THROW(parse_flops(text), Error);
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

TEST(Quantity, SecondsReadWell) {
  EXPECT_EQ(in_seconds(0), "0 s");
  EXPECT_EQ(in_seconds(10e-6), "10.0 us");
  EXPECT_EQ(in_seconds(0.421), "421.0 ms");
  EXPECT_EQ(in_seconds(12.356), "12.36 s");
}

}  // namespace
}  // namespace zero::plan

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Numbers with a unit, as a person writes and reads them. MiB is 2^20 bytes, GiB 2^30, MB 10^6 and
/// GB 10^9: every text that is printed says which.
namespace zero::plan {

inline constexpr std::int64_t kMiB = 1 << 20, kGiB = 1 << 30, kGB = 1'000'000'000;

/// Its value is its bytes.
enum class Unit : std::int64_t { kMiB = plan::kMiB, kGiB = plan::kGiB, kGB = plan::kGB };

/// "MiB", "GiB" or "GB".
const char* name(Unit unit);

/// An amount of memory and the unit that it was given in, which answers are then printed in.
struct Memory {
  std::int64_t bytes = 0;
  Unit unit = Unit::kGB;
};

/// "24GB", "22.5 GiB", "512MiB"; also KiB, kB, MB, TiB, TB and B, which are then shown in MiB, GiB
/// or GB. Part of a byte is dropped. Throws zero::Error without a unit (24 GB and 24 GiB differ by
/// 7 %), and unless it is from 1 to 2^60 bytes.
Memory parse_memory(std::string_view text);

/// A number of things: "361821120", "361,821,120", "1.5e9", "7B" (10^9), "360M" (10^6), "64k".
/// Throws zero::Error unless it is a whole number from 1 to 10^15.
std::int64_t parse_count(std::string_view text);

/// Bytes a second: "100GB/s", "12.5GiB/s", "200Gbit/s". Throws zero::Error unless it is from 1 to
/// 10^24.
double parse_bandwidth(std::string_view text);
/// Seconds: "10us", "1.5 ms", "2s". Throws zero::Error without a unit and unless it is from 0 to
/// 10^6.
double parse_seconds(std::string_view text);
/// Operations a second: "150TFLOP/s", "90 GFLOP/s", "150e12FLOP/s". Throws zero::Error unless it is
/// from 1 to 10^24.
double parse_flops(std::string_view text);

/// `bytes` in a unit, without its name, rounded to the nearest: (26e9, kGB, 2) is "26.00".
std::string in(double bytes, Unit unit, int decimals = 2);

/// The same rounded up, and with the unit: a need is never shown as less than it is, so that
/// 24.0001 GB do not look as if they fitted into 24.
std::string at_least(std::int64_t bytes, Unit unit);
/// The same rounded down: for the memory that there is.
std::string at_most(std::int64_t bytes, Unit unit);

/// Seconds as a person reads them: "421.0 ms", "16.0 us", "12.36 s", "0 s".
std::string in_seconds(double seconds);

}  // namespace zero::plan

#include "quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

#include <zero/base/error.hpp>
#include <zero/base/table.hpp>

namespace zero::plan {
namespace {

struct NamedFactor {
  std::string_view name;
  double factor;
};

constexpr double kLargestMemory = 0x1p60;
constexpr double kLargestCount = 1e15;
// Of bytes and operations a second. Like the longest time, far from what makes seconds infinite.
constexpr double kLargestRate = 1e24;
constexpr double kLongestSeconds = 1e6;

constexpr std::array<NamedFactor, 9> kMemoryUnits = {{{"B", 1},
                                                      {"kB", 1e3},
                                                      {"KiB", 0x1p10},
                                                      {"MB", 1e6},
                                                      {"MiB", 0x1p20},
                                                      {"GB", 1e9},
                                                      {"GiB", 0x1p30},
                                                      {"TB", 1e12},
                                                      {"TiB", 0x1p40}}};
constexpr std::array<NamedFactor, 5> kCounts = {
    {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
constexpr std::array<NamedFactor, 7> kBandwidths = {{{"B/s", 1},
                                                     {"MB/s", 1e6},
                                                     {"MiB/s", 0x1p20},
                                                     {"GB/s", 1e9},
                                                     {"GiB/s", 0x1p30},
                                                     {"Gbit/s", 1e9 / 8},
                                                     {"Mbit/s", 1e6 / 8}}};
constexpr std::array<NamedFactor, 4> kTimes = {
    {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
constexpr std::array<NamedFactor, 4> kFlops = {
    {{"FLOP/s", 1}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}}};

struct Parsed {
  double value;  // in the base unit
  std::string_view unit;
};

[[noreturn]] void refuse(std::string_view text, std::string_view expected) {
  throw Error(fmt::format("'{}' is not {}", text, expected));
}

Parsed parse(std::string_view text, std::span<const NamedFactor> units, std::string_view expected) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || !std::isfinite(number)) refuse(text, expected);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const NamedFactor& known : units) {
    if (known.name == unit) return {number * known.factor, known.name};
  }
  refuse(text, expected);
}

std::string rounded(std::int64_t bytes, Unit unit, int decimals, bool up) {
  const std::int64_t size = bytes_of(unit);
  std::int64_t parts = 1;
  for (int i = 0; i < decimals; ++i) parts *= 10;
  const std::int64_t rest = (bytes % size) * parts;
  const std::int64_t units = bytes / size * parts + rest / size + (up && rest % size != 0 ? 1 : 0);
  std::string digits = fmt::format("{:0{}}", units, decimals + 1);
  if (decimals > 0) digits.insert(digits.size() - static_cast<std::size_t>(decimals), ".");
  return fmt::format("{} {}", digits, name(unit));
}

}  // namespace

std::int64_t bytes_of(Unit unit) {
  return unit == Unit::kMiB ? kMiB : unit == Unit::kGiB ? kGiB : kGB;
}

const char* name(Unit unit) {
  return unit == Unit::kMiB ? "MiB" : unit == Unit::kGiB ? "GiB" : "GB";
}

Memory parse_memory(std::string_view text) {
  constexpr std::string_view kExpected =
      "an amount of memory: a positive number and a unit, as in 24GB (10^9), 24GiB (2^30) or "
      "512MiB (2^20)";
  const Parsed parsed = parse(text, kMemoryUnits, kExpected);
  if (!(parsed.value >= 1) || parsed.value >= kLargestMemory) refuse(text, kExpected);
  Memory memory{static_cast<std::int64_t>(parsed.value), Unit::kGB};
  const bool binary = parsed.unit.find('i') != std::string_view::npos;
  if (binary) memory.unit = memory.bytes < kGiB ? Unit::kMiB : Unit::kGiB;
  if (!binary && memory.bytes < kGB / 10) memory.unit = Unit::kMiB;
  return memory;
}

std::int64_t parse_count(std::string_view text) {
  constexpr std::string_view kExpected =
      "a whole number from 1 to 1e15, as in 361821120, 1.5e9 or 7B";
  std::string plain(text);
  std::erase(plain, ',');
  const Parsed parsed = [&] {
    try {
      return parse(plain, kCounts, kExpected);
    } catch (const Error&) {
      refuse(text, kExpected);
    }
  }();
  // A product such as 1.1 * 1e9 may miss the whole number that is meant by a rounding error.
  const double whole = std::round(parsed.value);
  if (!(whole >= 1) || whole > kLargestCount || std::abs(parsed.value - whole) > 1e-12 * whole) {
    refuse(text, kExpected);
  }
  return static_cast<std::int64_t>(whole);
}

double parse_bandwidth(std::string_view text) {
  constexpr std::string_view kExpected =
      "a bandwidth from 1B/s to 1e24B/s, as in 100GB/s, 12.5GiB/s or 200Gbit/s";
  const double value = parse(text, kBandwidths, kExpected).value;
  if (!(value >= 1 && value <= kLargestRate)) refuse(text, kExpected);
  return value;
}

double parse_seconds(std::string_view text) {
  constexpr std::string_view kExpected = "a time from 0s to 1e6s, as in 10us, 1.5ms or 2s";
  const double value = parse(text, kTimes, kExpected).value;
  if (!(value >= 0 && value <= kLongestSeconds)) refuse(text, kExpected);
  return value;
}

double parse_flops(std::string_view text) {
  constexpr std::string_view kExpected =
      "a speed from 1FLOP/s to 1e24FLOP/s, as in 150TFLOP/s or 90GFLOP/s";
  const double value = parse(text, kFlops, kExpected).value;
  if (!(value >= 1 && value <= kLargestRate)) refuse(text, kExpected);
  return value;
}

std::string in(double bytes, Unit unit, int decimals) {
  return base::fixed(bytes / static_cast<double>(bytes_of(unit)), decimals);
}

std::string at_least(std::int64_t bytes, Unit unit, int decimals) {
  return rounded(bytes, unit, decimals, /*up=*/true);
}

std::string at_most(std::int64_t bytes, Unit unit, int decimals) {
  return rounded(bytes, unit, decimals, /*up=*/false);
}

std::string in_seconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return base::fixed(seconds * 1e6, 1) + " us";
  if (seconds < 1) return base::fixed(seconds * 1e3, 1) + " ms";
  return base::fixed(seconds, 2) + " s";
}

}  // namespace zero::plan

#include "quantity.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <zero/base/error.hpp>
#include <zero/base/table.hpp>

namespace zero::plan {
namespace {

// CLI11's AsNumberWithUnit hands a number on as text of six digits: too few for bytes.
struct Kind {
  const char* expected;
  std::string_view unit;
  double least, most;
};

double factor_of(std::string_view prefix) {
  static const std::map<std::string_view, double> factors = {
      {"n", 1e-9},    {"u", 1e-6},    {"m", 1e-3},    {"", 1},       {"k", 1e3},
      {"M", 1e6},     {"G", 1e9},     {"T", 1e12},    {"P", 1e15},   {"B", 1e9},  // billions
      {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
  const auto found = factors.find(prefix);
  return found == factors.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

// A number, spaces, and the unit with a prefix.
double parse(std::string_view text, const Kind& kind) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error == std::errc() && unit.ends_with(kind.unit)) {
    unit.remove_suffix(kind.unit.size());
    const double value = number * factor_of(unit);
    if (value >= kind.least && value <= kind.most) return value;
  }
  throw Error(fmt::format("'{}' is not {}", text, kind.expected));
}

// In hundredths of a unit; a double would lose bytes of the largest amounts.
long double hundredths(std::int64_t bytes, Unit unit) {
  return 100 * static_cast<long double>(bytes) / static_cast<long double>(bytes_of(unit));
}

}  // namespace

std::int64_t bytes_of(Unit unit) {
  return unit == Unit::kMiB ? kMiB : unit == Unit::kGiB ? kGiB : kGB;
}

const char* name(Unit unit) {
  return unit == Unit::kMiB ? "MiB" : unit == Unit::kGiB ? "GiB" : "GB";
}

Memory parse_memory(std::string_view text) {
  constexpr Kind kind = {
      "an amount of memory: a positive number and a unit, as in 24GB (10^9), 24GiB (2^30) or "
      "512MiB (2^20)",
      "B", 1, 0x1p60};
  Memory memory{static_cast<std::int64_t>(parse(text, kind)), Unit::kGB};
  const bool binary = text.find('i') != std::string_view::npos;
  if (binary) memory.unit = memory.bytes < kGiB ? Unit::kMiB : Unit::kGiB;
  if (!binary && memory.bytes < kGB / 10) memory.unit = Unit::kMiB;
  return memory;
}

std::int64_t parse_count(std::string_view text) {
  constexpr Kind kind = {"a whole number from 1 to 1e15, as in 361821120, 1.5e9 or 7B", "", 1,
                         1e15};
  std::string plain(text);
  std::erase(plain, ',');
  const double value = parse(plain, kind);
  // A product such as 1.1 * 1e9 may miss the whole number that is meant by a rounding error.
  const double whole = std::round(value);
  if (std::abs(value - whole) > 1e-12 * whole) {
    throw Error(fmt::format("'{}' is not {}", text, kind.expected));
  }
  return static_cast<std::int64_t>(whole);
}

double parse_bandwidth(std::string_view text) {
  constexpr const char* expected =
      "a bandwidth from 1B/s to 1e24B/s, as in 100GB/s, 12.5GiB/s or 200Gbit/s";
  if (text.ends_with("bit/s")) return parse(text, {expected, "bit/s", 8, 8e24}) / 8;
  return parse(text, {expected, "B/s", 1, 1e24});
}

double parse_seconds(std::string_view text) {
  return parse(text, {"a time from 0s to 1e6s, as in 10us, 1.5ms or 2s", "s", 0, 1e6});
}

double parse_flops(std::string_view text) {
  return parse(text, {"a speed from 1FLOP/s to 1e24FLOP/s, as in 150TFLOP/s or 90GFLOP/s", "FLOP/s",
                      1, 1e24});
}

std::string in(double bytes, Unit unit, int decimals) {
  return base::fixed(bytes / static_cast<double>(bytes_of(unit)), decimals);
}

std::string at_least(std::int64_t bytes, Unit unit) {
  return fmt::format("{:.2f} {}", std::ceil(hundredths(bytes, unit)) / 100, name(unit));
}

std::string at_most(std::int64_t bytes, Unit unit) {
  return fmt::format("{:.2f} {}", std::floor(hundredths(bytes, unit)) / 100, name(unit));
}

std::string in_seconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return base::fixed(seconds * 1e6, 1) + " us";
  if (seconds < 1) return base::fixed(seconds * 1e3, 1) + " ms";
  return base::fixed(seconds, 2) + " s";
}

}  // namespace zero::plan

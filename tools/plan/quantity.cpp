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
  double least, most;
  std::map<std::string_view, double> units;
};

double parse(std::string_view text, const Kind& kind) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const auto found = kind.units.find(unit);
  const bool valid = error == std::errc() && found != kind.units.end();
  const double value = valid ? number * found->second : std::numeric_limits<double>::quiet_NaN();
  if (value >= kind.least && value <= kind.most) return value;
  throw Error(fmt::format("'{}' is not {}", text, kind.expected));
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
  static const Kind kind = {
      "an amount of memory: a positive number and a unit, as in 24GB (10^9), 24GiB (2^30) or "
      "512MiB (2^20)",
      1,
      0x1p60,
      {{"B", 1},
       {"kB", 1e3},
       {"KiB", 0x1p10},
       {"MB", 1e6},
       {"MiB", 0x1p20},
       {"GB", 1e9},
       {"GiB", 0x1p30},
       {"TB", 1e12},
       {"TiB", 0x1p40}}};
  Memory memory{static_cast<std::int64_t>(parse(text, kind)), Unit::kGB};
  const bool binary = text.find('i') != std::string_view::npos;
  if (binary) memory.unit = memory.bytes < kGiB ? Unit::kMiB : Unit::kGiB;
  if (!binary && memory.bytes < kGB / 10) memory.unit = Unit::kMiB;
  return memory;
}

std::int64_t parse_count(std::string_view text) {
  static const Kind kind = {"a whole number from 1 to 1e15, as in 361821120, 1.5e9 or 7B",
                            1,
                            1e15,
                            {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
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
  static const Kind kind = {
      "a bandwidth from 1B/s to 1e24B/s, as in 100GB/s, 12.5GiB/s or 200Gbit/s",
      1,
      1e24,
      {{"B/s", 1},
       {"MB/s", 1e6},
       {"MiB/s", 0x1p20},
       {"GB/s", 1e9},
       {"GiB/s", 0x1p30},
       {"Gbit/s", 1e9 / 8},
       {"Mbit/s", 1e6 / 8}}};
  return parse(text, kind);
}

double parse_seconds(std::string_view text) {
  static const Kind kind = {"a time from 0s to 1e6s, as in 10us, 1.5ms or 2s",
                            0,
                            1e6,
                            {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
  return parse(text, kind);
}

double parse_flops(std::string_view text) {
  static const Kind kind = {
      "a speed from 1FLOP/s to 1e24FLOP/s, as in 150TFLOP/s or 90GFLOP/s",
      1,
      1e24,
      {{"FLOP/s", 1}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}}};
  return parse(text, kind);
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

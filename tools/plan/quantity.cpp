#include "quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include <tools/support/table.hpp>
#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

// A number, spaces, a prefix and `unit`. CLI11's AsNumberWithUnit hands a number on as text of six
// digits: too few for bytes.
double parse(std::string_view text, std::string_view unit, double least, double most,
             const char* expected, bool whole = false) {
  static const std::map<std::string_view, double> factors = {
      {"n", 1e-9},    {"u", 1e-6},    {"m", 1e-3},    {"", 1},       {"k", 1e3},
      {"M", 1e6},     {"G", 1e9},     {"T", 1e12},    {"P", 1e15},   {"B", 1e9},  // billions
      {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
  double value = NAN;
  const auto [rest, error] = std::from_chars(text.begin(), text.end(), value);
  std::string_view prefix(rest, text.end());
  const bool has_unit = error == std::errc() && prefix.ends_with(unit);
  if (has_unit) prefix.remove_suffix(unit.size());
  prefix.remove_prefix(std::min(prefix.find_first_not_of(' '), prefix.size()));
  const auto factor = factors.find(prefix);
  value *= has_unit && factor != factors.end() ? factor->second : NAN;
  // A product such as 1.1 * 1e9 may miss the whole number that is meant by a rounding error.
  const bool fits = !whole || std::abs(value - std::round(value)) <= 1e-12 * value;
  if (fits && value >= least && value <= most) return value;
  throw Error(fmt::format("'{}' is not {}", text, expected));
}

// In hundredths of a unit; a double would lose bytes of the largest amounts.
long double hundredths(std::int64_t bytes, Unit unit) {
  return 100 * static_cast<long double>(bytes) / static_cast<long double>(unit);
}

}  // namespace

const char* name(Unit unit) {
  return unit == Unit::kMiB ? "MiB" : unit == Unit::kGiB ? "GiB" : "GB";
}

Memory parse_memory(std::string_view text) {
  const double bytes = parse(text, "B", 1, 0x1p60,
                             "an amount of memory: a positive number and a unit, as in 24GB "
                             "(10^9), 24GiB (2^30) or 512MiB (2^20)");
  const bool binary = text.find('i') != std::string_view::npos;
  const bool small = bytes < static_cast<double>(binary ? kGiB : kGB / 10);
  return {static_cast<std::int64_t>(bytes), small ? Unit::kMiB : binary ? Unit::kGiB : Unit::kGB};
}

std::int64_t parse_count(std::string_view text) {
  std::string plain(text);
  std::erase(plain, ',');
  return std::llround(parse(plain, "", 1, 1e15,
                            "a whole number from 1 to 1e15, as in 361821120, 1.5e9 or 7B",
                            /*whole=*/true));
}

double parse_bandwidth(std::string_view text) {
  const bool bits = text.ends_with("bit/s");
  return parse(text, bits ? "bit/s" : "B/s", bits ? 8 : 1, bits ? 8e24 : 1e24,
               "a bandwidth from 1B/s to 1e24B/s, as in 100GB/s, 12.5GiB/s or 200Gbit/s") /
         (bits ? 8 : 1);
}

double parse_seconds(std::string_view text) {
  return parse(text, "s", 0, 1e6, "a time from 0s to 1e6s, as in 10us, 1.5ms or 2s");
}

double parse_flops(std::string_view text) {
  return parse(text, "FLOP/s", 1, 1e24,
               "a speed from 1FLOP/s to 1e24FLOP/s, as in 150TFLOP/s or 90GFLOP/s");
}

std::string in(double bytes, Unit unit, int decimals) {
  return tools::fixed(bytes / static_cast<double>(unit), decimals);
}

std::string at_least(std::int64_t bytes, Unit unit) {
  return fmt::format("{:.2f} {}", std::ceil(hundredths(bytes, unit)) / 100, name(unit));
}

std::string at_most(std::int64_t bytes, Unit unit) {
  return fmt::format("{:.2f} {}", std::floor(hundredths(bytes, unit)) / 100, name(unit));
}

std::string in_seconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return tools::fixed(seconds * 1e6, 1) + " us";
  if (seconds < 1) return tools::fixed(seconds * 1e3, 1) + " ms";
  return tools::fixed(seconds, 2) + " s";
}

}  // namespace zero::plan

#include "quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include <zero/base/error.hpp>
#include <zero/base/table.hpp>

namespace zero::plan {
namespace {

Error refusal(std::string_view text, const char* expected) {
  return Error(fmt::format("'{}' is not {}", text, expected));
}

// A number, spaces, a prefix and `unit`. CLI11's AsNumberWithUnit hands a number on as text of six
// digits: too few for bytes.
double parse(std::string_view text, std::string_view unit, double least, double most,
             const char* expected) {
  static const std::map<std::string_view, double> factors = {
      {"n", 1e-9},    {"u", 1e-6},    {"m", 1e-3},    {"", 1},       {"k", 1e3},
      {"M", 1e6},     {"G", 1e9},     {"T", 1e12},    {"P", 1e15},   {"B", 1e9},  // billions
      {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string_view prefix(rest, end);
  if (error != std::errc() || !prefix.ends_with(unit)) throw refusal(text, expected);
  prefix.remove_suffix(unit.size());
  prefix.remove_prefix(std::min(prefix.find_first_not_of(' '), prefix.size()));
  const auto factor = factors.find(prefix);
  const double value = factor == factors.end() ? -1 : number * factor->second;
  if (!(value >= least && value <= most)) throw refusal(text, expected);
  return value;
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
  constexpr const char* kExpected = "a whole number from 1 to 1e15, as in 361821120, 1.5e9 or 7B";
  std::string plain(text);
  std::erase(plain, ',');
  const double value = parse(plain, "", 1, 1e15, kExpected);
  // A product such as 1.1 * 1e9 may miss the whole number that is meant by a rounding error.
  if (std::abs(value - std::round(value)) > 1e-12 * value) throw refusal(text, kExpected);
  return std::llround(value);
}

double parse_bandwidth(std::string_view text) {
  constexpr const char* kExpected =
      "a bandwidth from 1B/s to 1e24B/s, as in 100GB/s, 12.5GiB/s or 200Gbit/s";
  if (text.ends_with("bit/s")) return parse(text, "bit/s", 8, 8e24, kExpected) / 8;
  return parse(text, "B/s", 1, 1e24, kExpected);
}

double parse_seconds(std::string_view text) {
  return parse(text, "s", 0, 1e6, "a time from 0s to 1e6s, as in 10us, 1.5ms or 2s");
}

double parse_flops(std::string_view text) {
  return parse(text, "FLOP/s", 1, 1e24,
               "a speed from 1FLOP/s to 1e24FLOP/s, as in 150TFLOP/s or 90GFLOP/s");
}

std::string in(double bytes, Unit unit, int decimals) {
  return base::fixed(bytes / static_cast<double>(unit), decimals);
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

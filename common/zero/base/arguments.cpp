#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <system_error>

#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>

namespace zero::base {

namespace fs = std::filesystem;

void check_arguments(int argc, const char* const* argv) {
  std::string option;  // the last that was named
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool names_one = word.starts_with("--");
    const std::size_t sign = word.find('=');
    if (names_one) option = word.substr(0, sign);
    if (!word.empty() && !(names_one && sign + 1 == word.size())) continue;
    if (option.empty()) throw Error("the command line has an empty word: leave it out");
    throw Error(
        fmt::format("{} needs a name or a value, and what it was given is empty: give it one, or "
                    "leave {} out",
                    option, option));
  }
}

std::string refuse_nan(const std::string& text) {
  // What is no number at all is CLI11's to refuse.
  if (!std::isnan(std::strtod(text.c_str(), nullptr))) return "";
  return fmt::format("'{}' is not a number", text);
}

std::string refuse_bad_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, seed);
  const bool plain = text == "0" || !text.starts_with('0');
  if (problem == std::errc() && stop == end && plain) return "";
  return fmt::format("'{}' is no seed: a whole number from 0 to {} is", text,
                     std::numeric_limits<std::uint64_t>::max());
}

fs::path place_of(const fs::path& name) {
  std::error_code problem;
  const fs::path absolute = fs::absolute(name);
  fs::path place = fs::weakly_canonical(absolute, problem);
  // A folder on the way may not be entered: then its names are compared as they are.
  if (problem) place = absolute.lexically_normal();
  return place.has_filename() ? place : place.parent_path();
}

}  // namespace zero::base

#include "arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/distributed/environment.hpp>

namespace zero::tools {

namespace {

// CLI11 names unexpected arguments, but not the known ones.
std::string explain_extras(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& extra : app.remaining()) {
    if (!extra.starts_with('-')) continue;
    return base::unknown_name_message("option", extra.substr(0, extra.find('=')), known);
  }
  return fmt::format("'{}' is not expected here: options begin with --",
                     fmt::join(app.remaining(), " "));
}

}  // namespace

void check_arguments(int argc, const char* const* argv) {
  std::string option;  // the last one named
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

void parse_arguments(CLI::App& app, const char* program, int argc, const char* const* argv) {
  check_arguments(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    fmt::print(stderr, "{}: {}\n", program, explain_extras(app));
    std::exit(kWrongUsage);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : kWrongUsage);
  }
}

std::string refuse_nan(const std::string& text) {
  // CLI11 rejects text that is no number at all.
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

void validate_world_size(int asked) {
  const auto environment = dist::rank_environment();
  if (!environment || environment->world_size == asked) return;
  throw Error(
      fmt::format("--nproc {}: this process is rank {} of {} by the variables of a launcher ({}), "
                  "which alone says how many ranks there are: leave --nproc out, or unset them",
                  asked, environment->rank, environment->world_size, environment->launcher));
}

}  // namespace zero::tools

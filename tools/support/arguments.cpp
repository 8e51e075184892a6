#include "arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

#include <zero/base/names.hpp>

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

void parse_arguments(CLI::App& app, const char* program, int argc, const char* const* argv) {
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

}  // namespace zero::tools

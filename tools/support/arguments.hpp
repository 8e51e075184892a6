#pragma once

#include <string>

namespace CLI {
class App;
}

/// Command line checks of all programs beyond those of CLI11.
namespace zero::tools {

/// Exit code of a program whose command line is wrong.
inline constexpr int kWrongUsage = 2;

/// Reads the command line as CLI11 does. If help was asked for or the line is wrong, prints the
/// help, or `program`, the error and what would be right, and ends the program.
void parse_arguments(CLI::App& app, const char* program, int argc, const char* const* argv);

/// For CLI11's check(): the error for a number's text if it is NaN, else "". CLI::Range accepts
/// NaN.
std::string refuse_nan(const std::string& text);

}  // namespace zero::tools

#pragma once

#include <string>

namespace CLI {
class App;
}

/// Command line checks of all programs beyond those of CLI11.
namespace zero::tools {

/// Throws zero::Error, naming the option, if a word of the command line is empty or an option ends
/// with "=". The usual cause is a shell variable that is not set: the option must not be ignored
/// silently.
void check_arguments(int argc, const char* const* argv);

/// Exit code of a program whose command line is wrong.
inline constexpr int kWrongUsage = 2;

/// Reads the command line as CLI11 does, after check_arguments(). If help was asked for or the line
/// is wrong, prints the help, or `program`, the error and what would be right, and ends the
/// program.
void parse_arguments(CLI::App& app, const char* program, int argc, const char* const* argv);

/// For CLI11's check(): the error for a number's text if it is NaN, else "". CLI::Range accepts
/// NaN.
std::string refuse_nan(const std::string& text);

/// For CLI11's check(): the error for a seed's text; "" for a whole number from 0 to 2^64 - 1
/// without sign and leading zeros. CLI11 takes others modulo 2^64, or as octal.
std::string refuse_bad_seed(const std::string& text);

/// For programs with a number of ranks on the command line. Throws zero::Error if a launcher
/// started this process with a world size other than `asked`, or if its variables are invalid.
/// Without a launcher any number is accepted.
void validate_world_size(int asked);

}  // namespace zero::tools

#pragma once

#include <filesystem>
#include <string>

namespace CLI {
class App;
}

/// What the programs ask of their command line beyond what CLI11 does.
namespace zero::base {

/// Throws zero::Error, naming the option, where a word of the command line is empty or an option
/// ends with "=". That comes of a shell's variable that is not set: what was asked for must not
/// be left out without a word.
void check_arguments(int argc, const char* const* argv);

/// Exit code of a program whose command line is wrong.
inline constexpr int kWrongUsage = 2;

/// Reads the command line as CLI11 does, after check_arguments(). Prints help, or what is wrong and
/// what would be right behind the name of the program, and ends the program where that is all there
/// is to do.
void parse_arguments(CLI::App& app, const char* program, int argc, const char* const* argv);

/// For CLI11's check(): what is wrong with the text of a number, which is "" unless it is NaN.
/// CLI::Range lets NaN through.
std::string refuse_nan(const std::string& text);

/// For CLI11's check(): what is wrong with the text of a seed, "" for a whole number from 0 to
/// 2^64 - 1 without sign and leading zeros. CLI11 takes others modulo 2^64, or as octal.
std::string refuse_bad_seed(const std::string& text);

/// Where a name of a file or folder leads, for comparing names: absolute, links followed, without a
/// slash at the end. What it names need not exist.
std::filesystem::path place_of(const std::filesystem::path& name);

}  // namespace zero::base

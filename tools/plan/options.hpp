#pragma once

#include <string>

#include "planner.hpp"

namespace zero::plan {

/// Exit codes of the program, beside base::kWrongUsage.
inline constexpr int kFits = 0;    ///< also if no memory was given
inline constexpr int kFailed = 1;  ///< bad input
inline constexpr int kNothingFits = 3;

/// What the command line asks for.
struct Options {
  Request request;
  bool scenarios = false;  ///< the table of scenarios() in place of a plan
  std::string json;        ///< file, or "-" for the terminal; empty: none
};

/// Reads the command line. Prints help, or what is wrong and what would be right, and ends the
/// program if that is all there is to do. Throws zero::Error for a model that cannot be read, an
/// unknown name and a quantity without a unit.
Options parse(int argc, char** argv);

}  // namespace zero::plan

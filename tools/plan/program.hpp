#pragma once

#include <string>

#include "planner.hpp"

/// The two ends of `./run plan`.
namespace zero::plan {

/// What the words of the command line ask. Prints the help or what is wrong and ends the program as
/// tools::parse_arguments() does, and throws zero::Error for a quantity or a model that cannot be
/// read, naming the option.
Request read_options(int argc, const char* const* argv);

/// A plan for readers: tables and sentences for a terminal of 100 columns.
std::string to_text(const Plan& plan);

}  // namespace zero::plan

#pragma once

#include "planner.hpp"

namespace zero::plan {

/// What the words of `./run plan` ask. Prints the help or what is wrong and ends the program as
/// tools::parse_arguments() does, and throws zero::Error for a quantity or a model that cannot be
/// read, naming the option.
Request read_options(int argc, const char* const* argv);

}  // namespace zero::plan

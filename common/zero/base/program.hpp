#pragma once

#include <functional>
#include <string>

/// What every program of this project does around its work.
namespace zero {

/// Writes a line to stderr. Where that cannot be written to there is nobody to tell: it is no
/// error.
void log_error(const std::string& line);

/// Runs `program` and gives the exit code of the process: what it returns, or `failure` after an
/// exception, whose message goes to stderr behind `name`, or where what it printed could not be
/// written (a full disk). Standard streams that were closed lead to /dev/null from then on, so that
/// no file that is opened later takes their place.
int run_program(const std::string& name, const std::function<int()>& program, int failure = 1);

}  // namespace zero

#pragma once

#include <functional>
#include <string>

/// The common frame of every program of this project.
namespace zero {

/// Writes a line to stderr. Ignores a failure to write: there is no other place to report it.
void log_error(const std::string& line);

/// Runs `program` and returns the exit code of the process: the result of `program`, or `failure`
/// after an exception, whose message is printed to stderr after `name`, or if output could not be
/// written (a full disk). Standard streams that were closed are first opened on /dev/null, so that
/// no file opened later takes their place.
int run_program(const std::string& name, const std::function<int()>& program, int failure = 1);

}  // namespace zero

#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

/// The common frame of every program of this project.
namespace zero {

/// Writes a line to stderr. Ignores a failure to write: there is no other place to report it.
void log_error(const std::string& line);

/// log_error() of what is lost if no exception can say so: the program then ends with exit code 1
/// in place of 0.
void log_loss(const std::string& line);

/// Work that is lost if the program ends before it: exit(), the end of main() and quick_exit() call
/// `give_up`, which ends its threads and returns a line for log_loss(). A process forked meanwhile
/// has no part in it. _exit() and signals cannot be noticed.
class Unfinished {
 public:
  explicit Unfinished(std::function<std::string()> give_up);
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

 private:
  friend int give_up_unfinished(int code);

  std::function<std::string()> give_up_;
  pid_t process_;
};

/// What the end of the program does, for a process that ends without it: gives up what is
/// unfinished. Returns the exit code to end with, in place of `code`.
int give_up_unfinished(int code);

/// Runs `program` and returns the exit code of the process: the result of `program`, or `failure`
/// after an exception, whose message is printed to stderr after `name`, or if output could not be
/// written (a full disk). Standard streams that were closed are first opened on /dev/null, so that
/// no file opened later takes their place.
int run_program(const std::string& name, const std::function<int()>& program, int failure = 1);

}  // namespace zero

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>

namespace zero {
namespace {

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() returns the lowest free number, which is `stream` here.
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != stream) std::_Exit(1);
  }
}

// True if everything printed so far reached its file or terminal.
bool output_is_complete() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
}

}  // namespace

void log_error(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

int run_program(const std::string& name, const std::function<int()>& program, int failure) {
  open_standard_streams();
  int code = failure;
  try {
    code = program();
  } catch (const std::exception& error) {
    log_error(fmt::format("{}: {}", name, message_of(error)));
  }
  if (output_is_complete()) return code;
  log_error(fmt::format("{}: its output could not be written: {}", name, std::strerror(errno)));
  return code == 0 ? failure : code;
}

}  // namespace zero

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <mutex>
#include <set>
#include <utility>

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

// Never destroyed: the program ends while it is in use.
struct Ending {
  std::mutex mutex;
  std::set<Unfinished*> unfinished;
  std::atomic<pid_t> lossy = 0;  // the process that has lost something
};

Ending& ending() {
  // The handlers run before all that was registered to end earlier than this: what is in use by
  // then lives on.
  static Ending* const only = [] {
    ::on_exit(
        [](int code, void*) {
          // glibc runs the handlers that are left, and ends with this code.
          if (const int right = give_up_unfinished(code); right != code) std::exit(right);
        },
        nullptr);
    std::at_quick_exit([] {
      if (const int right = give_up_unfinished(0); right != 0) std::quick_exit(right);
    });
    return new Ending;
  }();
  return *only;
}

}  // namespace

void log_loss(const std::string& line) {
  log_error(line);
  ending().lossy = ::getpid();
}

Unfinished::Unfinished(std::function<std::string()> give_up)
    : give_up_(std::move(give_up)), process_(::getpid()) {
  const std::lock_guard lock(ending().mutex);
  ending().unfinished.insert(this);
}

Unfinished::~Unfinished() {
  const std::lock_guard lock(ending().mutex);
  ending().unfinished.erase(this);
}

int give_up_unfinished(int code) {
  const std::lock_guard lock(ending().mutex);
  for (Unfinished* const work : std::exchange(ending().unfinished, {})) {
    if (work->process_ == ::getpid()) log_loss(work->give_up_());
  }
  return code == 0 && ending().lossy == ::getpid() ? 1 : code;
}

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

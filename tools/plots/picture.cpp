#include "picture.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace zero::plots {
namespace {

// Both ends of a pipe, closed at the end of the scope or before.
class Pipe {
 public:
  Pipe() { open_ = ::pipe2(ends_.data(), O_CLOEXEC) == 0; }
  ~Pipe() {
    close(0);
    close(1);
  }
  bool is_open() const { return open_; }
  int operator[](std::size_t end) const { return ends_[end]; }
  void close(std::size_t end) {
    if (open_ && ends_[end] >= 0) ::close(ends_[end]);
    ends_[end] = -1;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
  bool open_ = false;
};

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t n = 0; (n = ::read(descriptor, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return text;
}

}  // namespace

Picture draw(const std::filesystem::path& script, const std::filesystem::path& json) {
  const char* named = std::getenv("ZERO_PYTHON");
  std::string python = named == nullptr ? "python3" : named;
  std::string arguments[] = {script.string(), json.string()};
  char* const words[] = {python.data(), arguments[0].data(), arguments[1].data(), nullptr};

  Pipe output;
  if (!output.is_open()) return {false, std::strerror(errno)};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDERR_FILENO);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, python.c_str(), &actions, nullptr, words, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return {false, fmt::format("cannot start {}: {}", python, std::strerror(error))};
  output.close(1);
  const std::string said = read_all(output[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return {WIFEXITED(status) && WEXITSTATUS(status) == 0, said};
}

}  // namespace zero::plots

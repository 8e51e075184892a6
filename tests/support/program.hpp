#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "test_folder.hpp"

namespace zero::testing {

/// How a program ended.
struct ProcessResult {
  int code = -1;     ///< exit code; above 127 where a signal ended it
  std::string said;  ///< all that it printed, errors among it
};

/// A program that runs beside the test, as a user would start it, in a process group of its own.
class Program {
 public:
  /// Starts `arguments` (the program first) with `variables` added to the environment.
  Program(const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& variables = {}) {
    pid_ = ::fork();
    // In both processes, because either may come first.
    ::setpgid(pid_, pid_);
    if (pid_ != 0) return;
    const int log = ::open(log_path().c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (const std::string& argument : arguments)
      words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    ::execv(words.front(), words.data());
    ::_exit(127);
  }
  ~Program() {
    if (!ended_) ::kill(-pid_, SIGKILL);
    end();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Blocks until it has ended; its exit code, or 128 and the signal.
  int end() {
    int status = 0;
    if (!ended_ && ::waitpid(pid_, &status, 0) == pid_) note_end(status);
    return code_;
  }
  std::string said() const { return read_bytes(log_path()); }

  /// Blocks until it has said `text`; false if it ended, or a minute passed, before that.
  bool says(const std::string& text) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (said().find(text) == std::string::npos) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        note_end(status);
        return said().find(text) != std::string::npos;
      }
      if (std::chrono::steady_clock::now() > limit) return false;
      ::usleep(10'000);
    }
    return true;
  }

  /// Processes that it started and that live, in the order in which it did.
  std::vector<pid_t> children() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) +
                       "/children");
    return {std::istream_iterator<pid_t>(file), {}};
  }

  /// True where anything of its process group is alive. A zombie that nobody has waited for counts.
  bool group_lives() const { return ::kill(-pid_, 0) == 0; }

  /// Kills the program alone, not its group; its exit code.
  int kill() {
    ::kill(pid_, SIGKILL);
    return end();
  }

  /// Blocks until nothing of its group is alive; false after a minute. Waits for orphans of the
  /// program itself, so this process must be the one that gets them (PR_SET_CHILD_SUBREAPER).
  bool group_ends() const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (group_lives()) {
      while (::waitpid(-pid_, nullptr, WNOHANG) > 0) continue;
      if (std::chrono::steady_clock::now() > limit) return false;
      ::usleep(10'000);
    }
    return true;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::string log_path() const { return path("log"); }
  void note_end(int status) {
    ended_ = true;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  testing::TestFolder folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
};

/// A path as a word of a command line, with spaces around it.
inline std::string shell_word(const std::filesystem::path& path) {
  return " '" + path.string() + "' ";
}

/// Runs a command line of the shell in the folder of the project. Blocks until it has ended.
inline ProcessResult run_command(const std::string& command) {
  Program shell({"/bin/sh", "-c", command});
  const int code = shell.end();
  return {code, shell.said()};
}

}  // namespace zero::testing

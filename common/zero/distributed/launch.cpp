#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/environment.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/store/folder_store.hpp>

namespace zero::dist {
namespace {

using Clock = std::chrono::steady_clock;
using Meeting = c10::intrusive_ptr<FolderStore>;

// An anonymous file that parent and child share.
class SharedFile {
 public:
  SharedFile() {
    if (descriptor < 0) throw failure("made");
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile() { ::close(descriptor); }

  void write(const std::string& text) const {
    if (!(std::ofstream(path()) << text).flush()) throw failure("written");
  }
  std::string read() const {
    std::ifstream file(path());
    if (!file) throw failure("read");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const int descriptor = static_cast<int>(::syscall(SYS_memfd_create, "zero", 0U));

 private:
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor); }
  Error failure(const char* what) const {
    return Error(fmt::format("the file of what a rank says cannot be {} at {}: {}", what, path(),
                             std::strerror(errno)));
  }
};

struct Child {
  pid_t pid = -1;
  int pid_descriptor = -1;
  SharedFile result;
  SharedFile output;
  std::atomic<bool> running = false;  // a handler of a signal reads it
  RankExit exit;
};

// Until stop() a SIGTERM to this process goes on to its ranks. (Ctrl-C in a terminal reaches all by
// itself.)
class PassesOnSigterm {
 public:
  explicit PassesOnSigterm(const std::vector<Child>& ranks) : ranks_(ranks) {
    ::sigaction(SIGTERM, nullptr, &before_);
    PassesOnSigterm* none = nullptr;  // another thread may start ranks as well
    if (before_.sa_handler == SIG_IGN || !active.compare_exchange_strong(none, this)) return;
    struct sigaction action = {};
    action.sa_handler = &pass_on;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGTERM, &action, nullptr);
    // One that comes while ranks are started waits for the last of them.
    sigset_t term;
    ::sigemptyset(&term);
    ::sigaddset(&term, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &term, &mask_);
    blocks_ = true;
  }
  ~PassesOnSigterm() { stop(); }
  PassesOnSigterm(const PassesOnSigterm&) = delete;
  PassesOnSigterm& operator=(const PassesOnSigterm&) = delete;

  /// Call when all ranks run.
  void started() {
    if (std::exchange(blocks_, false)) ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  /// A rank calls it first: it has none of its own.
  void stop() {
    if (active.load() != this) return;
    ::sigaction(SIGTERM, &before_, nullptr);
    active = nullptr;
    started();
  }

  bool heard() const { return heard_; }

 private:
  static void pass_on(int signal) {
    const int error = errno;
    if (PassesOnSigterm* const all = active.load()) {
      all->heard_ = true;
      for (const Child& rank : all->ranks_) {
        if (rank.running) ::kill(rank.pid, signal);
      }
    }
    errno = error;
  }

  inline static std::atomic<PassesOnSigterm*> active = nullptr;
  const std::vector<Child>& ranks_;
  struct sigaction before_ = {};
  sigset_t mask_ = {};
  bool blocks_ = false;
  std::atomic<bool> heard_ = false;
};

int threads_for(const LaunchOptions& options) {
  if (options.threads > 0) return options.threads;
  if (base::variable("OMP_NUM_THREADS")) return at::get_num_threads();
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / options.world_size);
}

// The exit code.
int run_function(int rank, const Child& child, const LaunchOptions& options,
                 const std::function<std::string(int)>& function) {
  try {
    at::set_num_threads(threads_for(options));
    child.result.write(function(rank));
  } catch (const std::exception& error) {
    std::cout.flush();
    log_error(fmt::format("rank {}: {}", options.first_rank + rank, message_of(error)));
    return 1;
  }
  return 0;
}

bool has_other_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads)) > 1;
}

[[noreturn]] void run_child(int rank, const Child& child, const LaunchOptions& options,
                            pid_t parent, bool lost_threads,
                            const std::function<std::string(int)>& function) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(1);  // the parent died before the line above
  if (options.capture_output) {
    ::dup2(child.output.descriptor, STDOUT_FILENO);
    ::dup2(child.output.descriptor, STDERR_FILENO);
  }
  int code = 0;
  const auto run = [&] { code = give_up_unfinished(run_function(rank, child, options, function)); };
  // Threads that computed for this one are not there after a fork, and OpenMP would wait for them.
  // It gives a new thread threads of its own.
  lost_threads ? std::thread(run).join() : run();
  std::cout.flush();
  std::fflush(nullptr);
  // Not exit(): it would run destructors of objects that belong to the parent.
  std::_Exit(code);
}

void take_exit(Child& child, Clock::time_point started) {
  int status = 0;
  const auto taken = TEMP_FAILURE_RETRY(::waitpid(child.pid, &status, 0));
  child.running = false;
  child.exit.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  ::close(child.pid_descriptor);
  if (taken != child.pid) return;
  child.exit.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  child.exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// Blocks until a child ends or the deadline passes; returns false for the deadline.
bool wait_for_one(std::vector<Child>& children, std::optional<Clock::time_point> deadline,
                  Clock::time_point started) {
  std::vector<pollfd> descriptors;
  for (const Child& child : children) {
    descriptors.push_back({child.running ? child.pid_descriptor : -1, POLLIN, 0});
  }
  int milliseconds = -1;
  if (deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
    milliseconds = static_cast<int>(std::max<std::int64_t>(0, left.count()));
  }
  if (::poll(descriptors.data(), descriptors.size(), milliseconds) == 0) return false;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (children[i].running && (descriptors[i].revents & POLLIN) != 0) {
      take_exit(children[i], started);
    }
  }
  return true;
}

// Whether the process is stopped (SIGSTOP, a debugger): it does not run until someone resumes it.
bool is_stopped(pid_t pid) {
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  const std::size_t name_end = line.rfind(')');  // the state follows the name and a space
  return name_end != std::string::npos && line.size() > name_end + 2 &&
         (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

void kill_the_rest(std::vector<Child>& children, Clock::time_point started) {
  for (Child& child : children) {
    if (!child.running) continue;
    child.exit.killed = true;
    child.exit.stopped = is_stopped(child.pid);
    ::kill(child.pid, SIGKILL);
    take_exit(child, started);
  }
}

std::string how_it_ended(const RankExit& exit) {
  if (exit.stopped) return fmt::format("rank {} was stopped, and killed in the end", exit.rank);
  if (exit.killed) {
    return fmt::format("rank {} was killed because another rank failed or time was up", exit.rank);
  }
  if (exit.signal != 0) {
    return fmt::format("rank {} was ended by signal {} ({})", exit.rank, exit.signal,
                       ::strsignal(exit.signal));
  }
  if (exit.exit_code < 0) {
    return fmt::format(
        "rank {} ended, and how is not known: the program must neither ignore SIGCHLD nor wait for "
        "processes that it did not start",
        exit.rank);
  }
  return fmt::format("rank {} ended with exit code {}", exit.rank, exit.exit_code);
}

// Blocks until all have ended. Those that wait in `meeting` hear of the first failure.
void watch(std::vector<Child>& children, const LaunchOptions& options, Clock::time_point started,
           const Meeting& meeting) {
  std::optional<Clock::time_point> deadline;
  if (options.total_timeout.count() > 0) deadline = started + options.total_timeout;
  bool failed = false;
  while (std::ranges::any_of(children, &Child::running)) {
    if (!wait_for_one(children, deadline, started)) {
      kill_the_rest(children, started);
      return;
    }
    const auto failure =
        std::ranges::find_if(children, [](const Child& c) { return !c.running && !c.exit.ok(); });
    if (failure != children.end() && !failed) {
      failed = true;
      try {
        if (meeting) meeting->set(kFailedKey, how_it_ended(failure->exit));
      } catch (const Error&) {
        // The ranks time out instead, and the launcher still reports the failure.
      }
      const auto limit = Clock::now() + options.connect.timeout + options.grace;
      deadline = deadline ? std::min(*deadline, limit) : limit;
    }
  }
}

// Else each process of a launcher would start as many ranks again.
void verify_is_no_rank(int ranks) {
  const auto environment = rank_environment();
  if (!environment || environment->world_size == 1) return;
  throw Error(fmt::format(
      "launch_ranks() of {} ranks in a process that is rank {} of {} by the variables of a "
      "launcher ({}): each of its processes would start {} more; call "
      "connect(*rank_environment()) in place of launch_ranks(), or unset the variables",
      ranks, environment->rank, environment->world_size, environment->launcher, ranks));
}

int descriptor_of(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)); }

std::vector<RankExit> exits_of(std::vector<Child>& children) {
  std::vector<RankExit> exits;
  for (Child& child : children) {
    child.exit.result = child.result.read();
    child.exit.output = child.output.read();
    exits.push_back(std::move(child.exit));
  }
  return exits;
}

// Forks the ranks and waits for them.
std::vector<RankExit> run_processes(LaunchOptions options,
                                    const std::function<std::string(int)>& function,
                                    Meeting meeting) {
  if (options.world_size < 1) {
    throw Error(fmt::format("{} ranks cannot be started: 1 or more can", options.world_size));
  }
  options.connect.timeout = time_limit(options.connect.timeout);
  std::cout.flush();
  std::fflush(nullptr);
  const auto started = Clock::now();
  const pid_t parent = ::getpid();
  const bool lost_threads = has_other_threads();
  std::vector<Child> children(static_cast<std::size_t>(options.world_size));
  PassesOnSigterm signals(children);
  try {
    for (int rank = 0; rank < options.world_size; ++rank) {
      Child& child = children[static_cast<std::size_t>(rank)];
      child.exit.rank = options.first_rank + rank;
      child.pid = ::fork();
      if (child.pid == 0) {
        signals.stop();
        run_child(rank, child, options, parent, lost_threads, function);
      }
      child.running = child.pid > 0;
      if (child.running) child.pid_descriptor = descriptor_of(child.pid);
      if (child.pid_descriptor < 0) {
        throw Error(fmt::format("rank {} of {} could not be started: {}", rank, options.world_size,
                                std::strerror(errno)));
      }
    }
    signals.started();
    watch(children, options, started, meeting);
  } catch (...) {
    kill_the_rest(children, started);  // otherwise they would run unwatched
    throw;
  }
  signals.stop();
  meeting.reset();  // removes the folder
  // Now it is for the program's handler, or ends this process.
  if (signals.heard()) ::raise(SIGTERM);
  return exits_of(children);
}

}  // namespace

std::vector<RankExit> fork_processes(const LaunchOptions& options,
                                     const std::function<std::string(int)>& function) {
  return run_processes(options, function, {});
}

std::vector<RankExit> launch_ranks(const LaunchOptions& options, const RankFunction& function) {
  verify_is_no_rank(options.world_size);
  auto meeting = c10::make_intrusive<FolderStore>();
  const auto connected = [&, folder = meeting->folder()](int rank) {
    return function(*connect_in_folder(folder, rank, options.world_size, options.connect));
  };
  return run_processes(options, connected, std::move(meeting));
}

std::string describe_failures(const std::vector<RankExit>& exits) {
  std::string text;
  for (const RankExit& exit : exits) {
    if (exit.ok()) continue;
    text += fmt::format("{} after {:.2f} s\n{}", how_it_ended(exit), exit.seconds, exit.output);
    if (text.back() != '\n') text += '\n';  // the rank ended in the middle of a line
  }
  return text;
}

void check_all_well(const std::vector<RankExit>& exits, const std::string& what) {
  std::string failures = describe_failures(exits);
  if (failures.empty()) return;
  failures.pop_back();  // a message has no newline at its end
  throw Error(what.empty() ? failures : fmt::format("{}:\n{}", what, failures));
}

}  // namespace zero::dist

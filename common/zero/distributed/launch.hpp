#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <zero/distributed/connect_in_folder.hpp>

/// Ranks on this machine without a launcher: one forked process for each.
namespace zero::dist {

struct LaunchOptions {
  int world_size = 2;
  /// Number of the first rank in messages, for a launcher that starts ranks one by one.
  int first_rank = 0;
  ConnectOptions connect = {};
  /// Time limit for the whole launch; ranks still running then are killed. 0 for no limit.
  std::chrono::milliseconds total_timeout{0};
  /// How long the other ranks may run on after one failed. They notice it within the communicator's
  /// time limit; after that and `grace` they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(2);
  /// Keep the output of ranks in RankExit::output instead of printing it.
  bool capture_output = false;
  /// Threads of LibTorch in each rank; 0: as OMP_NUM_THREADS says, else the machine's cores divided
  /// by the ranks, at least 1.
  int threads = 0;
};

/// How one rank ended.
struct RankExit {
  int rank = 0;          ///< its number in messages
  int exit_code = -1;    ///< of the process; -1 if a signal ended it, or how it ended is not known
  int signal = 0;        ///< the signal that ended it, or 0
  bool killed = false;   ///< by the launcher, after another rank failed or time was up
  bool stopped = false;  ///< killed while it was stopped (SIGSTOP, a debugger)
  std::string result;    ///< what the rank's function returned
  std::string output;    ///< what the rank printed, if captured
  double seconds = 0;    ///< from the start to the end of this rank

  bool ok() const { return exit_code == 0 && signal == 0; }
};

/// The function of a rank. Its text is returned in RankExit::result. An exception is printed after
/// the rank's number and ends the process with exit code 1.
using RankFunction = std::function<std::string(Communicator&)>;

/// Forks `world_size` processes, connects them and runs `function` in each; blocks until all have
/// ended and returns how. They meet in a temporary folder, in memory if there is room (/dev/shm).
/// Ranks that wait there for a failed rank are told of the failure. If the calling process has
/// other threads, such as LibTorch's after a large operation, `function` runs in a new thread of
/// each rank. If the caller dies, its ranks are killed; a SIGTERM to it goes on to them, so that
/// they may save, and to the caller itself when they have ended. Throws
/// zero::Error if the caller is a rank of torchrun, mpirun or srun itself (rank_environment()), of
/// several.
std::vector<RankExit> launch_ranks(const LaunchOptions& options, const RankFunction& function);

/// The same for a function that connects by itself, or not at all; its argument is the rank.
std::vector<RankExit> fork_processes(const LaunchOptions& options,
                                     const std::function<std::string(int rank)>& function);

/// A line for each rank that failed: how it ended and, if captured, its output on lines of its own.
/// Empty if no rank failed.
std::string describe_failures(const std::vector<RankExit>& exits);

/// Throws zero::Error if a rank failed: `what` and a colon, if `what` is not empty, then the lines
/// of describe_failures() below it.
void check_all_well(const std::vector<RankExit>& exits, const std::string& what = "");

}  // namespace zero::dist

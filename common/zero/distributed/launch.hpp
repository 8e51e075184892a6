#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <zero/distributed/connect.hpp>

/// Ranks on this machine without a launcher: one forked process each.
namespace zero::dist {

struct LaunchOptions {
  int world_size = 2;
  /// What the first of them is called in messages: a launcher starts ranks one by one.
  int first_rank = 0;
  ConnectOptions connect;
  /// Everything together; then whoever is left is killed. 0 for no limit.
  std::chrono::milliseconds total_timeout{0};
  /// How long the others may go on after one rank failed: they notice by themselves, within the
  /// communicator's time limit; then they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(2);
  /// Keep what ranks print in RankExit::output, instead of letting it through.
  bool capture_output = false;
  /// Threads of LibTorch in each rank; 0: the machine's cores divided by the ranks, at least 1.
  int threads = 0;
};

/// How one rank ended.
struct RankExit {
  int rank = 0;          ///< what it is called
  int exit_code = 0;     ///< of the process; -1 where a signal ended it
  int signal = 0;        ///< that ended it, or 0
  bool killed = false;   ///< by the launcher, after another rank failed or time was up
  bool stopped = false;  ///< killed, and found stopped (SIGSTOP, a debugger) by the launcher
  std::string result;    ///< what the rank's function returned
  std::string output;    ///< what it printed, where captured
  double seconds = 0;    ///< from the start to this rank's end

  bool ok() const { return exit_code == 0 && signal == 0; }
};

/// What a rank runs. Its text reaches RankExit::result. An exception is printed with the rank
/// before it and ends the process with exit code 1.
using RankFunction = std::function<std::string(Communicator&)>;

/// Forks `world_size` processes, connects them and runs `function` in each; blocks until all have
/// ended and says how. They meet in a folder, in memory where there is room (/dev/shm), which is
/// gone afterwards; ranks that wait there for one that has failed are told. The calling process
/// must not have used a tensor yet: LibTorch's threads do not survive a fork. When the caller dies,
/// its ranks are killed with it.
std::vector<RankExit> launch_ranks(const LaunchOptions& options, const RankFunction& function);

/// The same for a function that connects by itself, or not at all; it gets its rank.
std::vector<RankExit> fork_processes(const LaunchOptions& options,
                                     const std::function<std::string(int rank)>& function);

/// A line for each rank that failed: how it ended and, where captured, what it printed in lines of
/// its own. Empty if all are well.
std::string describe_failures(const std::vector<RankExit>& exits);

/// Throws zero::Error unless all are well: `what`, if any, a colon, and the lines of
/// describe_failures() below it.
void check_all_well(const std::vector<RankExit>& exits, const std::string& what = "");

}  // namespace zero::dist

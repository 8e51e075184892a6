// A rank that dies or stands still somewhere in a step: everybody else ends by itself within the
// time limit, with an error that names an operation and a rank, and nothing is left running.

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>
#include <thread>

#include <tests/support/hooked_communicator.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/session.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

using ::testing::ContainsRegex;

constexpr int kVictim = 1;
constexpr int kSteps = 50;
constexpr auto kTimeLimit = std::chrono::seconds(2);

// The caller is about to stop for ever: has it killed when `others` have ended. The launcher would,
// too, but only after the time that it gives a rank to notice.
void end_after(const std::vector<pid_t>& others) {
  const pid_t self = ::getpid();
  if (::fork() != 0) return;
  for (const pid_t other : others) {
    pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, other, 0)), POLLIN, 0};
    if (ended.fd >= 0) ::poll(&ended, 1, /*timeout=*/-1);  // else it is gone
  }
  ::kill(self, SIGKILL);
  ::_exit(0);
}

// Where a rank is struck. Under ZeRO++ phases are those of its collectives.
struct Place {
  std::string mode, phase;
  int ranks = 3;
};

// A phase of a collective of ZeRO++: of which group, for what, and whether it is waited for.
struct Collective {
  const char *phase, *axis;
  dist::Purpose purpose;
  bool waiting;
};
constexpr Collective kCollectives[] = {
    {"new_weights", "data", dist::Purpose::kParameter, false},
    {"dequantize", "data", dist::Purpose::kParameter, true},
    {"secondary_shards", "shard", dist::Purpose::kParameter, false},
    {"inside_group", "shard", dist::Purpose::kGradient, false},
    {"between_hops", "replica", dist::Purpose::kGradient, false},
    {"between_groups", "replica", dist::Purpose::kGradient, true}};

std::vector<Place> places() {
  std::vector<Place> all;
  for (const std::string& mode : all_strategies()) {
    for (const char* phase : {"forward", "backward", "optimizer"}) all.push_back({mode, phase});
  }
  for (const Collective& c : kCollectives) all.push_back({"zeropp", c.phase, 4});
  return all;
}

// Trains; `signal` reaches the victim at `place` of its second step.
void train_until_struck(dist::Communicator& communicator, const Place& place, int signal) {
  int step = 0;
  std::vector<pid_t> others;
  const auto pids = communicator.exchange(std::to_string(::getpid()));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank != kVictim) others.push_back(std::stoi(pids[static_cast<std::size_t>(rank)]));
  }
  const auto strike = [&](const std::string& here) {
    if (here != place.phase || step != 1 || communicator.rank() != kVictim) return;
    if (signal == SIGSTOP) end_after(others);
    ::raise(signal);
  };
  SessionOptions options = with_parts("ana");
  options.optimizer = hooked(options.optimizer, [&] { strike("optimizer"); });
  Session session(communicator, place.mode + (place.ranks == 4 ? ":group_size=2" : ""), options);
  session.model().call_in_forward([&] { strike("forward"); });
  session.strategy().passes().observe_gradients(
      [&](std::size_t, const at::Tensor&) { strike("backward"); });
  std::optional<Hooked> hook;
  for (const Collective& c : kCollectives) {
    if (place.phase != c.phase) continue;
    dist::Communicator& group = c.axis == std::string("data")
                                    ? session.strategy().mesh().data()
                                    : session.strategy().mesh().along(c.axis);
    hook.emplace(group, [&, c](dist::Operation, dist::Purpose purpose, bool waiting) {
      if (purpose == c.purpose && waiting == c.waiting) strike(c.phase);
    });
  }
  for (; step < kSteps; ++step) session.step(step);
}

dist::LaunchOptions launch_options(int ranks = 3) {
  dist::LaunchOptions options = captured(ranks, std::chrono::seconds(60));
  options.connect.timeout = kTimeLimit;
  // After the first rank has failed the others have this much longer than the time limit; then they
  // are killed, which RankExit tells apart. Less than the two seconds that users get.
  options.grace = std::chrono::milliseconds(500);
  return options;
}

std::vector<dist::RankExit> ranks_struck(const Place& place, int signal) {
  return dist::launch_ranks(launch_options(place.ranks), [&](dist::Communicator& communicator) {
    train_until_struck(communicator, place, signal);
    return std::string();
  });
}

void expect_no_processes_left() {
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

void expect_survivors_speak(const std::vector<dist::RankExit>& exits, const std::string& why) {
  std::string all;
  for (const dist::RankExit& exit : exits) {
    if (exit.rank == kVictim) continue;
    EXPECT_EQ(exit.exit_code, 1) << exit.output;
    EXPECT_FALSE(exit.killed) << "did not end by itself: " << exit.output;
    // "rank 0: reduce #31 (gradient, 28 bytes) in Trainer::step in step 1: …"
    EXPECT_THAT(exit.output,
                ContainsRegex(fmt::format("rank {}: [a-z_]+ #[0-9]+ \\([a-z]+, [0-9]+ bytes\\) in "
                                          "Trainer::step in step [0-9]+: .*rank [0-9]",
                                          exit.rank)));
    all += exit.output;
  }
  // Who hears of it second may see the first survivor leave.
  EXPECT_THAT(all, ContainsRegex(why));
}

class Fault : public ::testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Paths, Fault, ::testing::ValuesIn(places()),
                         [](const auto& info) { return info.param.mode + "_" + info.param.phase; });

TEST_P(Fault, ARankIsKilled) {
  const auto exits = ranks_struck(GetParam(), SIGKILL);
  EXPECT_EQ(exits[kVictim].signal, SIGKILL);
  EXPECT_FALSE(exits[kVictim].killed) << "the launcher did it, not the test";
  expect_survivors_speak(exits, "connection to rank 1 is gone|rank 1 is gone");
  expect_no_processes_left();
}

// What the others make of a rank that stands still in `phase`.
void expect_stop_is_noticed(const std::string& mode, const std::string& phase) {
  const auto exits = ranks_struck({mode, phase}, SIGSTOP);
  EXPECT_EQ(exits[kVictim].signal, SIGKILL) << "it cannot have ended by itself";
  expect_survivors_speak(exits, "nothing from rank 1 within 2(.0)? s");
  expect_no_processes_left();
}

class StoppedFault : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes, StoppedFault, ::testing::ValuesIn(all_strategies()),
                         [](const auto& info) { return info.param; });

// Runs `expect` for each of `count` groups of ranks side by side: most of the time they wait.
void expect_side_by_side(int count, const std::function<void(int i)>& expect) {
  dist::LaunchOptions options = captured(count, std::chrono::seconds(100));
  options.connect.timeout = options.total_timeout;
  const auto exits = dist::fork_processes(options, [&](int i) -> std::string {
    expect(i);
    if (::testing::Test::HasFailure()) throw Error("a stop was not noticed as it should be");
    return "noticed";
  });
  EXPECT_EQ(dist::describe_failures(exits), "");
}

TEST_P(StoppedFault, ARankIsStoppedInEachPhase) {
  const std::vector<std::string> phases = {"forward", "backward", "optimizer"};
  expect_side_by_side(3, [&](int i) {
    SCOPED_TRACE(phases[static_cast<std::size_t>(i)]);
    expect_stop_is_noticed(GetParam(), phases[static_cast<std::size_t>(i)]);
  });
}

// Ranks that wait for the words of another one hear of its end long before the time limit.
TEST(FaultBetweenSteps, ARankIsKilledWhileOthersWaitForItsWords) {
  dist::LaunchOptions options = launch_options();
  options.connect.timeout = std::chrono::seconds(50);
  const auto exits = dist::launch_ranks(options, [&](dist::Communicator& communicator) {
    if (communicator.rank() == kVictim) ::raise(SIGKILL);
    communicator.exchange("here");
    return std::string();
  });
  for (const int rank : {0, 2}) {
    const dist::RankExit& exit = exits[static_cast<std::size_t>(rank)];
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_FALSE(exit.killed);
    // One of them may see the other leave.
    EXPECT_THAT(exit.output, ContainsRegex("all_gather #[0-9]+ \\(setup, [0-9]+ bytes\\): the "
                                           "connection to rank [0-9] is gone"));
    EXPECT_LT(exit.seconds, 25);
  }
  EXPECT_THAT(exits[0].output + exits[2].output, ContainsRegex("connection to rank 1 is gone"));
}

// Waits for a child of `parent` other than this process.
pid_t first_rank_of(pid_t parent) {
  while (true) {
    std::ifstream children(fmt::format("/proc/{}/task/{}/children", parent, parent));
    for (pid_t child = 0; children >> child;) {
      if (child != ::getpid()) return child;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Starts a few ranks; one of them gets a signal from outside `delay` after it was started.
std::vector<dist::RankExit> ranks_signalled(int signal, std::chrono::milliseconds delay,
                                            std::chrono::milliseconds limit) {
  const pid_t parent = ::getpid();
  const pid_t stopper = ::fork();
  if (stopper == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t rank = first_rank_of(parent);
    std::this_thread::sleep_for(delay);
    ::kill(rank, signal);
    ::_exit(0);
  }
  dist::LaunchOptions options = launch_options();
  options.total_timeout = std::chrono::seconds(0);  // by itself, or never
  options.connect.timeout = limit;
  const auto exits = dist::launch_ranks(options, [&](dist::Communicator& communicator) {
    while (true) communicator.exchange("here");
    return std::string();
  });
  ::waitpid(stopper, nullptr, 0);
  return exits;
}

void expect_early_stop_is_noticed(std::chrono::milliseconds delay) {
  // The machine is busy with their start.
  const auto exits = ranks_signalled(SIGSTOP, delay, std::chrono::seconds(5));
  EXPECT_TRUE(std::any_of(exits.begin(), exits.end(), [](const auto& e) { return e.stopped; }));
  EXPECT_THAT(dist::describe_failures(exits), ::testing::HasSubstr("was stopped, and killed"));
}

// Wherever the others are by then, at the start or later: nobody waits forever.
TEST(FaultAtTheStart, ARankIsStoppedSoonAfterItWasStarted) {
  expect_side_by_side(
      6, [](int i) { expect_early_stop_is_noticed(std::chrono::milliseconds(16 * i)); });
}

// Ranks that wait for all to come hear of it from the process that started them.
TEST(FaultAtTheStart, ARankIsKilledAsSoonAsItWasStarted) {
  const auto exits =
      ranks_signalled(SIGKILL, std::chrono::milliseconds(0), std::chrono::seconds(50));
  const auto killed = std::ranges::find(exits, SIGKILL, &dist::RankExit::signal);
  ASSERT_NE(killed, exits.end());
  for (const dist::RankExit& exit : exits) {
    if (&exit == &*killed) continue;
    EXPECT_FALSE(exit.killed) << exit.output;
    EXPECT_LT(exit.seconds, 25);
  }
}

// The program that started the ranks is killed itself: they go with it.
TEST(Orphans, DoNotOutliveTheirLauncher) {
  // Orphans become children of this process, which can then wait for them and see how they ended.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    dist::launch_ranks(launch_options(), [&](dist::Communicator& communicator) {
      communicator.barrier();
      const pid_t self = ::getpid();
      if (::write(pipe[1], &self, sizeof self) != sizeof self) ::_exit(1);
      ::pause();
      return std::string();
    });
    ::_exit(0);
  }
  std::vector<pid_t> ranks(3);
  for (pid_t& rank : ranks) ASSERT_EQ(::read(pipe[0], &rank, sizeof rank), sizeof rank);
  ASSERT_EQ(::kill(launcher, SIGKILL), 0);
  // A rank that lives on is ended here: nothing is to be left behind by a test that fails either.
  ::alarm(20);
  struct sigaction interrupting {};
  interrupting.sa_handler = [](int) {};  // without SA_RESTART: waitpid() returns
  ::sigaction(SIGALRM, &interrupting, nullptr);
  for (int ended = 0; ended < 3 + 1; ++ended) {
    int status = 0;
    if (::waitpid(-1, &status, 0) < 0) {
      ADD_FAILURE() << "a rank outlived its launcher";
      for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
      break;
    }
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  ::alarm(0);
  while (::waitpid(-1, nullptr, 0) > 0) continue;
  expect_no_processes_left();
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace zero::testing

// What the launcher says of ranks that failed, and where ranks meet when one of them has ended.
#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/store/folder_store.hpp>

namespace zero::dist {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::ranks_ended;
using Variables = std::vector<std::pair<const char*, const char*>>;

class FailedRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FailedRanks, ::testing::Values(2, 3));

// In place of some thirty lines of calls.
TEST_P(FailedRanks, SayInOneLineWhatLibTorchThrew) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](Communicator&) {
    at::ones({2, 3}).view({7});
  });
  for (const RankExit& exit : exits) {
    EXPECT_EQ(exit.output, "rank " + std::to_string(exit.rank) +
                               ": shape '[7]' is invalid for input of size 6\n");
  }
}

TEST_P(FailedRanks, AreListedInLinesOfTheirOwn) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](Communicator& c) {
    std::fputs("in the middle of a line", stdout);
    if (c.rank() == 1) std::fputs("\n", stdout);
    std::fflush(stdout);
    std::_Exit(3);
  });
  const std::string line =
      "rank [0-9] ended with exit code 3 after [0-9.]+ s\n"
      "in the middle of a line";
  std::string all = line;
  for (int r = 1; r < GetParam(); ++r) all += "\n" + line;
  EXPECT_THAT(testing::error_of([&] { check_all_well(exits); }), MatchesRegex(all));
  EXPECT_THAT(testing::error_of([&] { check_all_well(exits, "training failed"); }),
              MatchesRegex("training failed:\n" + all));
}

TEST(TotalTimeout, EndsRanksThatHaveLongerSinceAnotherHasFailed) {
  LaunchOptions options = testing::captured(2, std::chrono::milliseconds(300));
  options.connect.timeout = std::chrono::seconds(40);
  const auto exits = fork_processes(options, [](int rank) -> std::string {
    if (rank == 0) throw Error("the first");
    ::pause();
    return "";
  });
  EXPECT_EQ(exits[0].exit_code, 1);
  EXPECT_TRUE(exits[1].killed);
  EXPECT_LT(exits[1].seconds, 30);
}

// A profiler's, or a timer of the program: calls of the system end with EINTR again and again.
class Signals {
 public:
  Signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { count = count + 1; };  // without SA_RESTART
    ::sigaction(SIGALRM, &action, &before_);
    const itimerval often{{0, 200}, {0, 200}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Signals() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &before_, nullptr);
    EXPECT_GT(count, 10);
  }
  inline static volatile std::sig_atomic_t count = 0;

 private:
  struct sigaction before_ {};
};

TEST_P(FailedRanks, AreFailuresWhateverSignalsThereAre) {
  const Signals signals;
  const auto exits = fork_processes(testing::captured(GetParam(), std::chrono::milliseconds(300)),
                                    [](int rank) -> std::string {
                                      if (rank > 0) ::pause();
                                      return std::string(1 << 20, 'x');
                                    });
  EXPECT_TRUE(exits[0].ok());
  EXPECT_EQ(exits[0].result.size(), 1 << 20);
  for (const RankExit& exit : exits) {
    if (exit.rank == 0) continue;
    EXPECT_TRUE(exit.killed);
    EXPECT_EQ(exit.signal, SIGKILL);
    EXPECT_FALSE(exit.ok());
  }
  EXPECT_THAT(testing::error_of([&] { check_all_well(exits); }), HasSubstr("rank 1 was killed"));
}

volatile std::sig_atomic_t terms_heard = 0;
extern "C" void note_term(int) { terms_heard = terms_heard + 1; }

// As torchrun does it: a rank may save and end well.
TEST(Terminated, RanksHearOfItAndSoDoesTheProgram) {
  for (const bool handles : {true, false}) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const auto outer = fork_processes(testing::captured(1, std::chrono::seconds(60)), [&](int) {
      if (handles) std::signal(SIGTERM, &note_term);
      const auto exits =
          fork_processes(testing::captured(2, std::chrono::seconds(30)), [&](int rank) {
            sigset_t term, before;  // it may come before sigsuspend()
            ::sigemptyset(&term);
            ::sigaddset(&term, SIGTERM);
            ::sigprocmask(SIG_BLOCK, &term, &before);
            EXPECT_EQ(::write(pipe[1], "x", 1), 1);
            char both[2];
            if (rank == 0) {
              for (char& one : both) EXPECT_EQ(::read(pipe[0], &one, 1), 1);
              ::kill(::getppid(), SIGTERM);
            }
            ::sigsuspend(&before);
            return std::to_string(terms_heard);
          });
      return fmt::format("{} {} {}", exits[0].result + exits[1].result,
                         exits[0].signal + exits[1].signal, terms_heard);
    });
    ::close(pipe[0]);
    ::close(pipe[1]);
    EXPECT_EQ(outer[0].result, handles ? "11 0 1" : "");
    EXPECT_EQ(outer[0].signal, handles ? 0 : SIGTERM);
  }
}

TEST_P(FailedRanks, AreThoseWhoseEndIsNotKnown) {
  EXPECT_FALSE(RankExit().ok());
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const auto restore = c10::make_scope_exit([&] { std::signal(SIGCHLD, before); });
  const auto run = [] {
    check_all_well(fork_processes(testing::captured(GetParam(), std::chrono::seconds(60)),
                                  [](int) { return std::string(); }));
  };
  // A rank may be gone before its process can be watched.
  EXPECT_THAT(testing::error_of(run),
              MatchesRegex("(rank [0-9] ended, and how is not known: .*SIGCHLD.*\n*)+|"
                           "rank [0-9] of [0-9] could not be started: No such process"));
}

// OpenMP keeps threads for a thread that has used them, and fork() does not copy them.
TEST(Ranks, MayUseThreadsAfterTheirParentHas) {
  const auto compute = [] { at::ones({1 << 20}).exp_(); };  // large enough for two threads
  at::set_num_threads(2);
  compute();
  LaunchOptions options = testing::captured(3, std::chrono::seconds(60));
  options.threads = 2;
  const auto exits = fork_processes(options, [&](int rank) -> std::string {
    compute();
    if (rank == 2) throw Error("the last");
    return std::to_string(at::get_num_threads());
  });
  at::set_num_threads(1);
  EXPECT_EQ(exits[0].result, "2");
  EXPECT_EQ(exits[1].result, "2");
  EXPECT_EQ(exits[2].output, "rank 2: the last\n");
}

// Else one rank would add up in another order than the program alone.
TEST(Ranks, HaveTheThreadsOfTheEnvironment) {
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  if (threads == nullptr) GTEST_SKIP() << "OMP_NUM_THREADS is not set; ctest sets it";
  LaunchOptions one;
  one.world_size = 1;
  const auto exits = fork_processes(one, [](int) { return std::to_string(at::get_num_threads()); });
  EXPECT_EQ(exits[0].result, threads);
}

TEST(TimeLimit, IsThatOfTheEnvironment) {
  const auto exits_with = [](const char* seconds) {
    ::setenv("ZERO_TIMEOUT", seconds, 1);
    const auto unset = c10::make_scope_exit([] { ::unsetenv("ZERO_TIMEOUT"); });
    return ranks_ended({.world_size = 3, .timeout = std::chrono::seconds(60)},
                       [](Communicator& communicator) {
                         if (communicator.rank() == 1) ::pause();
                         communicator.barrier();
                       });
  };
  const auto exits = exits_with("1");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(exits[static_cast<std::size_t>(rank)].output,
                HasSubstr("nothing from rank 1 within 1 s"));
  }
  EXPECT_TRUE(exits[1].killed);
  for (const char* nonsense : {"soon", "0", "1.5"}) {
    EXPECT_THAT(testing::error_of([&] { exits_with(nonsense); }),
                HasSubstr("ZERO_TIMEOUT='" + std::string(nonsense) +
                          "' makes no sense: a whole number from 1 to 1000000"));
  }
}

TEST(FolderStore, WaitsForNothingAfterAFailureButHasWhatWasSaidBefore) {
  FolderStore store;
  store.setTimeout(std::chrono::minutes(5));
  const std::vector<std::uint8_t> word = {'h', 'e', 'r', 'e'};
  store.set("word of rank 1", word);
  store.set(kFailedKey, std::string("rank 1 was ended by signal 9"));
  EXPECT_EQ(store.get("word of rank 1"), word);
  const auto started = std::chrono::steady_clock::now();
  EXPECT_EQ(testing::error_of([&] { store.get("next word of rank 1"); }),
            "rank 1 was ended by signal 9");
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::minutes(1));
}

// The environment belongs to the process: each case in one of its own. What `answer` returns there,
// or the message of its error.
std::string in_environment(const Variables& variables, const std::function<std::string()>& answer) {
  LaunchOptions one;
  one.world_size = 1;
  const auto exits = fork_processes(one, [&](int) -> std::string {
    ::clearenv();  // with what a launcher of this test has said
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    try {
      return answer();
    } catch (const Error& error) {
      return error.what();
    }
  });
  return exits.front().result;
}

std::string environment_as_seen(const Variables& variables) {
  return in_environment(variables, []() -> std::string {
    const auto env = rank_environment();
    if (!env) return "none";
    return fmt::format("{} {}/{}, here {}/{} :{}", env->launcher, env->rank, env->world_size,
                       env->local_rank, env->local_world_size, env->master_port);
  });
}

// Two processes of a launcher would start six ranks, in two groups that know nothing of each other.
TEST(Environment, OfALauncherIsNoPlaceToStartRanks) {
  const auto started = [](const Variables& variables) {
    return in_environment(variables, [] {
      const auto exits = launch_ranks({.world_size = 3}, [](Communicator&) { return "here "; });
      return exits[0].result + exits[1].result + exits[2].result;
    });
  };
  EXPECT_EQ(started({}), "here here here ");
  EXPECT_EQ(started({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "here here here ");
  EXPECT_THAT(started({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("launch_ranks() of 3 ranks in a process that is rank 1 of 2 by the "
                        "variables of a launcher (torchrun)"));
  EXPECT_THAT(started({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("rank 0 of 2 by the variables of a launcher (Open MPI)"));
}

TEST(Environment, OfEveryLauncherIsUnderstoodAndNonsenseIsNamed) {
  const std::vector<std::pair<Variables, std::string>> known = {
      {{}, "none"},
      {{{"RANK", "1"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_PORT", "1234"}},
       "torchrun 1/4, here 0/2 :1234"},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "Open MPI 0/4, here 0/2 :29500"},
      {{{"PMI_RANK", "1"},
        {"PMI_SIZE", "4"},
        {"MPI_LOCALRANKID", "1"},
        {"MPI_LOCALNRANKS", "2"},
        {"MASTER_ADDR", "192.0.2.1"}},
       "MPICH or Intel MPI 1/4, here 1/2 :29500"},
      {{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"PMI_RANK", "1"}},
       "MVAPICH 1/2, here 1/2 :29500"},
      {{{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "5"}}, "Slurm 4/5, here 4/5 :29500"}};
  for (const auto& [variables, seen] : known) EXPECT_EQ(environment_as_seen(variables), seen);
  const std::vector<std::pair<Variables, std::string>> nonsense = {
      {{{"WORLD_SIZE", "2"}}, "RANK is not set"},
      {{{"PMIX_RANK", "1"}}, "PMIX_RANK='1' says that a launcher started this process among"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK='-1'"},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}}, "RANK=''"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE='9999"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "http"}}, "MASTER_PORT='http'"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}, "MASTER_PORT='70000'"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}, "LOCAL_WORLD_SIZE='3'"}};
  for (const auto& [variables, named] : nonsense) {
    EXPECT_THAT(environment_as_seen(variables), HasSubstr(named));
  }
  // Who starts ranks by hand says no more than RANK and WORLD_SIZE: those that meet at loopback are
  // all on this machine.
  for (const auto& [more, here] :
       std::vector<std::pair<Variables, std::string>>{{{{"MASTER_ADDR", "127.0.0.1"}}, "1/3"},
                                                      {{{"MASTER_ADDR", "127.1.2.3"}}, "1/3"},
                                                      {{{"MASTER_ADDR", "localhost"}}, "1/3"},
                                                      {{{"MASTER_ADDR", "::1"}}, "1/3"},
                                                      {{}, "1/3"},
                                                      {{{"MASTER_ADDR", "192.0.2.1"}}, "0/1"},
                                                      {{{"LOCAL_WORLD_SIZE", "2"}}, "0/2"}}) {
    Variables variables = {{"RANK", "1"}, {"WORLD_SIZE", "3"}};
    variables.insert(variables.end(), more.begin(), more.end());
    EXPECT_EQ(environment_as_seen(variables), "torchrun 1/3, here " + here + " :29500");
  }
}

// torchrun may run in a batch script of Slurm, and mpiexec starts its processes by srun.
TEST(Environment, OfSeveralLaunchersThatOfTorchrunCountsAndALineSaysSo) {
  const Variables all = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"PMI_RANK", "0"},
                         {"PMI_SIZE", "6"},     {"RANK", "0"},         {"WORLD_SIZE", "4"}};
  const auto said = [](const Variables& variables) {
    LaunchOptions one{.world_size = 1};
    one.capture_output = true;
    return fork_processes(one,
                          [&](int) {
                            ::clearenv();
                            for (const auto& [name, value] : variables) {
                              ::setenv(name, value, 1);
                            }
                            rank_environment();
                            return fmt::format("{}", rank_environment()->world_size);
                          })
        .front();
  };
  const RankExit of_three = said(all);
  EXPECT_EQ(of_three.result, "4");
  EXPECT_EQ(of_three.output,
            "this process has variables of torchrun and of MPICH or Intel MPI: RANK and WORLD_SIZE "
            "of torchrun count, rank 0 of 4\n");
  EXPECT_THAT(said({all.begin(), all.begin() + 4}).output,
              HasSubstr("PMI_RANK and PMI_SIZE of MPICH or Intel MPI count, rank 0 of 6"));
  EXPECT_EQ(said({all.begin(), all.begin() + 2}).output, "");
}

}  // namespace
}  // namespace zero::dist

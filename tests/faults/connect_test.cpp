// Ranks that do not find each other: who is missing, or what is in the way, within the time limit.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <tests/support/port.hpp>
#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

using Exits = std::vector<dist::RankExit>;

// Runs `connect` in `ranks` processes, the limit of each second being the harness's affair.
Exits connecting(int ranks, const std::function<void(int rank)>& connect) {
  dist::LaunchOptions options = captured(ranks, std::chrono::seconds(30));
  options.connect.timeout = std::chrono::seconds(1);
  options.grace = std::chrono::seconds(2);
  return dist::fork_processes(options, [&](int rank) {
    connect(rank);
    return std::string("connected");
  });
}

dist::ConnectOptions within(int seconds) { return {.timeout = std::chrono::seconds(seconds)}; }

dist::RankEnvironment environment(int rank, int size, int port) {
  dist::RankEnvironment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.master_port = port;
  return environment;
}

// As torchrun's agent serves it, which outlives the ranks.
c10d::TCPStore served_store(int port) {
  c10d::TCPStoreOptions server;
  server.port = static_cast<std::uint16_t>(port);
  server.isServer = true;
  server.waitWorkers = false;
  return c10d::TCPStore("127.0.0.1", server);
}

// Ranks `first` to `last` of `size` alone try to connect: how they end.
Exits connecting_alone(int first, int last, int size, int port) {
  return connecting(last - first + 1, [=](int process) {
    dist::connect(environment(first + process, size, port), within(1));
  });
}

// Connects `ranks` ranks, and has each do something.
void expect_connected(int ranks, const std::function<void(dist::Communicator&, int port)>& work) {
  const int port = free_port();
  const Exits exits = connecting(ranks, [&](int rank) {
    work(*dist::connect(environment(rank, ranks, port), within(20)), port);
  });
  for (const dist::RankExit& exit : exits) EXPECT_EQ(exit.result, "connected") << exit.output;
}

// Rank 0 serves the store: when it has given up, the others can no longer ask who is missing.
TEST(Connect, RanksThatNeverComeAreNamed) {
  for (const auto& [size, missing] : {std::pair{3, "rank 2 of 3 did not come within 1 s"},
                                      std::pair{5, "ranks 2, 3, 4 of 5 did not come within 1 s"}}) {
    const Exits exits = connecting_alone(0, 1, size, free_port());
    expect_errors(exits, AnyOf(HasSubstr(missing), HasSubstr("the store of rank 0 is gone")));
    EXPECT_THAT(exits[0].output, HasSubstr(missing));
  }
}

// Two ranks with a store that is served, of which rank 1 comes `late`.
Exits one_late(int late, int limit, int restarts) {
  const int port = free_port();
  const c10d::TCPStore served = served_store(port);
  return connecting(2, [=](int rank) {
    dist::RankEnvironment of_rank = environment(rank, 2, port);
    of_rank.store_is_served = true;
    of_rank.restarts = restarts;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(late));
    dist::connect(of_rank, within(limit));
  });
}

// torchrun's agents start their own ranks again, each when it has noticed: one early, one late.
TEST(Connect, RanksThatAreStartedAgainWaitTwiceAsLong) {
  for (const dist::RankExit& exit : one_late(/*late=*/4, /*limit=*/3, /*restarts=*/1)) {
    EXPECT_EQ(exit.result, "connected") << exit.output;
  }
}

TEST(Connect, RankThatComesLaterIsToldThatOneHasGivenUp) {
  const Exits exits = one_late(/*late=*/3, /*limit=*/1, /*restarts=*/0);
  expect_errors({exits[0]}, HasSubstr("rank 1 of 2 did not come within 1 s"));
  expect_errors(
      {exits[1]},
      HasSubstr("not all ranks came: rank 0 has waited for all ranks for 1 s and given up"));
}

TEST(Connect, WhoAloneCannotConnectNamesWhatIsInTheWay) {
  const TakenPort taken;
  expect_errors(connecting_alone(0, 0, 2, taken.number()),
                HasSubstr(fmt::format("cannot listen on port {}: it is taken", taken.number())));
  const int port = free_port();
  expect_errors(
      connecting_alone(1, 1, 2, port),
      HasSubstr(fmt::format("rank 1 did not reach rank 0 at 127.0.0.1:{} within 1 s", port)));
  // The address of another machine, or of none, is not a port that is taken.
  expect_errors(connecting(1,
                           [](int) {
                             dist::RankEnvironment elsewhere = environment(0, 2, free_port());
                             elsewhere.master_address = "nobody.invalid";
                             dist::connect(elsewhere, within(1));
                           }),
                HasSubstr("MASTER_ADDR must be the name or the address of rank 0's machine"));
}

TEST(Connect, InterfaceThatIsNotThereIsNamed) {
  const int port = free_port();
  const Exits exits = connecting(2, [&](int rank) {
    ::setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0", 1);
    dist::connect(environment(rank, 2, port), within(1));
  });
  const auto named = ContainsRegex(
      "GLOO_SOCKET_IFNAME names 'nowhere0', and this machine's network interfaces are .*lo");
  // Rank 0 may have found that, and left with the store, while rank 1 still asks for it.
  expect_errors(exits, AnyOf(named, HasSubstr("the store of rank 0 is gone")));
  expect_errors({exits[0]}, named);
}

// A batch script of Slurm is task 0 of all, and nobody starts the others without srun.
TEST(Connect, WhoIsWaitedForIsSaidSoonWithTheVariablesThatSaySo) {
  const int port = free_port();
  const Exits exits = connecting(1, [&](int) {
    ::setenv("SLURM_PROCID", "0", 1);
    ::setenv("SLURM_NTASKS", "3", 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    dist::connect(*dist::rank_environment(), within(4));
  });
  expect_errors(exits, ContainsRegex("^rank 0 waits for ranks 1, 2 of 3, as SLURM_PROCID and "
                                     "SLURM_NTASKS say: srun must start the program\n(.*\n)*"
                                     "rank 0: ranks 1, 2 of 3 did not come within 4 s"));
}

TEST(Connect, RanksThatDifferInTheirLinkAreTold) {
  const int port = free_port();
  const Exits exits = connecting(3, [&](int rank) {
    ::setenv("ZERO_RANKS_PER_HOST", "1", 1);
    if (rank != 1) ::setenv("ZERO_LINK", rank == 0 ? "80mbit" : "10MB/s", 1);  // the same
    dist::connect(environment(rank, 3, port), within(20));
  });
  expect_errors(exits, HasSubstr("ZERO_LINK is 10000000 bytes a second on rank 0 and 0 on rank 1"));
}

// Rank 0 serves the store, and its process ends here as soon as it has what the others said.
TEST(Connect, RankThatServesTheStoreLeavesLast) {
  for (int round = 0; round < 5; ++round) {
    // The more ranks the more the others have to read after rank 0 has what it wants.
    expect_connected(8, [](dist::Communicator& communicator, int) {
      const std::string said(7 << 20, static_cast<char>('a' + communicator.rank()));
      if (communicator.exchange(said).at(2).back() != 'c') throw Error("something else was said");
    });
  }
}

// Its system still takes what the others send, and nobody reads it; nor does the store answer what
// rank 1 asks while it waits.
TEST(Connect, RankThatServesTheStoreIsStopped) {
  const int port = free_port();
  const Exits exits = connecting(2, [&](int rank) {
    const auto communicator = dist::connect(environment(rank, 2, port), within(4));
    if (rank == 0) ::raise(SIGSTOP);
    communicator->exchange("here");
  });
  expect_errors({exits[1]}, HasSubstr("nothing from rank 0 within 4 s"));
  EXPECT_LT(exits[1].seconds, 7);  // one time limit, and not two
}

// torchrun's agent, which serves the store, is stopped before the ranks come, or while two of them
// wait for the third.
TEST(Connect, ServerOfTheStoreIsStoppedBeforeAllHaveCome) {
  for (const int keys : {0, 2}) {
    const int port = free_port();
    Exits exits = connecting(3, [&](int process) {
      if (process == 2) {
        c10d::TCPStore served = served_store(port);
        while (served.getNumKeys() < keys)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ::raise(SIGSTOP);
      }
      dist::RankEnvironment rank = environment(process, 3, port);
      rank.store_is_served = true;
      dist::connect(rank, within(3));
    });
    exits.pop_back();
    expect_errors(exits, HasSubstr(fmt::format("the store at 127.0.0.1:{} does not answer within "
                                               "3 s: its process is stopped",
                                               port)));
    for (const dist::RankExit& exit : exits) EXPECT_LT(exit.seconds, 6);  // one time limit
  }
}

// A run of many steps exchanges many times: for each checkpoint, say.
TEST(Connect, WhatWasExchangedIsForgotten) {
  expect_connected(2, [](dist::Communicator& communicator, int port) {
    const auto keys_after = [&](int exchanges) {
      for (int round = 0; round < exchanges; ++round) communicator.exchange("something");
      communicator.barrier();
      c10d::TCPStoreOptions client;
      client.port = static_cast<std::uint16_t>(port);
      client.waitWorkers = false;
      const std::int64_t keys = c10d::TCPStore("127.0.0.1", client).getNumKeys();
      communicator.barrier();
      return keys;
    };
    const std::int64_t few = keys_after(3);
    const std::int64_t many = keys_after(30);
    if (few != many) throw Error(fmt::format("{} keys after 3, {} after 33", few, many));
  });
}

}  // namespace
}  // namespace zero::testing

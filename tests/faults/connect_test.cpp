// Ranks that do not find each other: who is missing, or what is in the way, within the time limit.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <tests/support/port.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Runs `connect` in `ranks` processes, the limit of each second being the harness's affair.
std::vector<dist::RankExit> connecting(int ranks, const std::function<void(int rank)>& connect) {
  dist::LaunchOptions options;
  options.world_size = ranks;
  options.connect.timeout = std::chrono::seconds(1);
  options.grace = std::chrono::seconds(2);
  options.total_timeout = std::chrono::seconds(30);
  options.capture_output = true;
  options.threads = 1;
  return dist::fork_processes(options, [&](int rank) {
    connect(rank);
    return std::string("connected");
  });
}

dist::ConnectOptions one_second() {
  dist::ConnectOptions options;
  options.timeout = std::chrono::seconds(1);
  return options;
}

dist::RankEnvironment environment(int rank, int size, int port) {
  dist::RankEnvironment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.master_port = port;
  return environment;
}

TEST(Connect, PortThatIsTakenIsNamed) {
  const TakenPort taken;
  const auto exits =
      connecting(1, [&](int) { dist::connect(environment(0, 2, taken.number()), one_second()); });
  EXPECT_EQ(exits[0].exit_code, 1);
  EXPECT_FALSE(exits[0].killed);
  EXPECT_THAT(exits[0].output,
              HasSubstr(fmt::format("cannot listen on port {}: it is taken", taken.number())));
}

TEST(Connect, RankThatNeverComesIsNamed) {
  const int port = free_port();
  const auto exits =
      connecting(2, [&](int rank) { dist::connect(environment(rank, 3, port), one_second()); });
  for (const dist::RankExit& exit : exits) {
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_FALSE(exit.killed);
    // Rank 0 serves the store: when it has given up, the other can no longer ask who is missing.
    EXPECT_THAT(exit.output, AnyOf(HasSubstr("rank 2 of 3 did not come within 1 s"),
                                   HasSubstr("the store of rank 0 is gone")));
  }
  EXPECT_THAT(exits[0].output, HasSubstr("rank 2 of 3 did not come within 1 s"));
}

TEST(Connect, SeveralMissingRanksAreAllNamed) {
  const int port = free_port();
  const auto exits =
      connecting(2, [&](int rank) { dist::connect(environment(rank, 5, port), one_second()); });
  for (const dist::RankExit& exit : exits) {
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_FALSE(exit.killed);
  }
  EXPECT_THAT(exits[0].output, HasSubstr("ranks 2, 3, 4 of 5 did not come within 1 s"));
}

TEST(Connect, Rank0ThatNeverComesIsNamed) {
  const int port = free_port();
  const auto exits =
      connecting(1, [&](int) { dist::connect(environment(1, 2, port), one_second()); });
  EXPECT_EQ(exits[0].exit_code, 1);
  EXPECT_FALSE(exits[0].killed);
  EXPECT_THAT(
      exits[0].output,
      HasSubstr(fmt::format("rank 1 did not reach rank 0 at 127.0.0.1:{} within 1 s", port)));
}

// A rank that came and then went away before the others were connected.
TEST(Connect, RankThatLeavesAtTheStartIsAnErrorOfTheOthers) {
  const int port = free_port();
  const auto exits = connecting(3, [&](int rank) {
    if (rank == 2) throw Error("no, thank you");
    dist::connect(environment(rank, 3, port), one_second());
  });
  for (const int rank : {0, 1}) {
    const dist::RankExit& exit = exits[static_cast<std::size_t>(rank)];
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_FALSE(exit.killed);
    EXPECT_THAT(exit.output, AnyOf(HasSubstr("rank 2 of 3 did not come"),
                                   HasSubstr("the store of rank 0 is gone")));
  }
  EXPECT_THAT(exits[0].output, HasSubstr("rank 2 of 3 did not come"));
}

TEST(Connect, InterfaceThatIsNotThereIsNamed) {
  const int port = free_port();
  const auto exits = connecting(2, [&](int rank) {
    ::setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0", 1);
    dist::connect(environment(rank, 2, port), one_second());
  });
  for (const dist::RankExit& exit : exits) {
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_FALSE(exit.killed);
    EXPECT_THAT(exit.output, ContainsRegex("GLOO_SOCKET_IFNAME names 'nowhere0', and this "
                                           "machine's network interfaces are .*lo"));
  }
}

// Rank 0 serves the store, and its process ends here as soon as it has what the others said.
TEST(Connect, RankThatServesTheStoreLeavesLast) {
  constexpr int kRanks = 8;  // the more the others have to read after rank 0 has what it wants
  for (int round = 0; round < 5; ++round) {
    const int port = free_port();
    const auto exits = connecting(kRanks, [&](int rank) {
      dist::ConnectOptions options;
      options.timeout = std::chrono::seconds(20);
      const auto communicator = dist::connect(environment(rank, kRanks, port), options);
      const std::string said(7 << 20, static_cast<char>('a' + rank));
      if (communicator->exchange(said).at(2).back() != 'c') throw Error("something else was said");
    });
    for (const dist::RankExit& exit : exits) EXPECT_EQ(exit.result, "connected") << exit.output;
  }
}

// Its system still takes what the others send, and nobody reads it.
TEST(Connect, RankThatServesTheStoreIsStopped) {
  const int port = free_port();
  const auto exits = connecting(2, [&](int rank) {
    dist::ConnectOptions options;
    options.timeout = std::chrono::seconds(4);
    const auto communicator = dist::connect(environment(rank, 2, port), options);
    if (rank == 0) ::raise(SIGSTOP);
    communicator->exchange("here");
  });
  EXPECT_EQ(exits[1].exit_code, 1);
  EXPECT_FALSE(exits[1].killed);
  EXPECT_THAT(exits[1].output,
              HasSubstr(fmt::format("the store at 127.0.0.1:{} does not answer", port)));
  EXPECT_LT(exits[1].seconds, 7);  // one time limit, and not two
}

// The address of another machine, or of none, is not a port that is taken.
TEST(Connect, AddressThatIsNotOfRank0IsNamed) {
  const auto exits = connecting(1, [&](int) {
    dist::RankEnvironment elsewhere = environment(0, 2, free_port());
    elsewhere.master_address = "nobody.invalid";
    dist::connect(elsewhere, one_second());
  });
  EXPECT_EQ(exits[0].exit_code, 1);
  EXPECT_FALSE(exits[0].killed);
  EXPECT_THAT(exits[0].output, HasSubstr("MASTER_ADDR must be the name or the address of rank 0's "
                                         "machine"));
}

// More than the store takes at a time.
TEST(Connect, LongTextsAreExchanged) {
  const int port = free_port();
  const auto exits = connecting(2, [&](int rank) {
    dist::ConnectOptions options;
    options.timeout = std::chrono::seconds(20);
    const auto communicator = dist::connect(environment(rank, 2, port), options);
    const auto said = [](int r) {
      std::string text(std::size_t{11} << 20, static_cast<char>('a' + r));
      text.replace(text.size() / 2, 6, "middle");
      return text;
    };
    const std::vector<std::string> all = communicator->exchange(said(rank));
    if (all != std::vector<std::string>{said(0), said(1)}) throw Error("something else was said");
    if (communicator->exchange("").at(1) != "") throw Error("something was said");
  });
  for (const dist::RankExit& exit : exits) EXPECT_EQ(exit.result, "connected") << exit.output;
}

// A run of many steps exchanges many times: for each checkpoint, say.
TEST(Connect, WhatWasExchangedIsForgotten) {
  const int port = free_port();
  const auto exits = connecting(2, [&](int rank) {
    dist::ConnectOptions options;
    options.timeout = std::chrono::seconds(20);
    const auto communicator = dist::connect(environment(rank, 2, port), options);
    const auto keys_after = [&](int exchanges) {
      for (int round = 0; round < exchanges; ++round) communicator->exchange("something");
      communicator->barrier();
      c10d::TCPStoreOptions client;
      client.port = static_cast<std::uint16_t>(port);
      client.waitWorkers = false;
      const std::int64_t keys = c10d::TCPStore("127.0.0.1", client).getNumKeys();
      communicator->barrier();
      return keys;
    };
    const std::int64_t few = keys_after(3);
    const std::int64_t many = keys_after(30);
    if (few != many) throw Error(fmt::format("{} keys after 3, {} after 33", few, many));
  });
  for (const dist::RankExit& exit : exits) EXPECT_EQ(exit.result, "connected") << exit.output;
}

// The same ranks with nothing in the way: the errors above are not those of the set-up.
TEST(ConnectPremises, RanksThatAllComeAreConnected) {
  const int port = free_port();
  const auto exits = connecting(3, [&](int rank) {
    dist::ConnectOptions options;
    options.timeout = std::chrono::seconds(20);
    dist::connect(environment(rank, 3, port), options)->barrier();
  });
  for (const dist::RankExit& exit : exits) EXPECT_EQ(exit.result, "connected") << exit.output;
}

}  // namespace
}  // namespace zero::testing

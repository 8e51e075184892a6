// Ranks that are lost in a collective that knows hosts, or call another one: an error on all
// others.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include <tests/support/between_hosts.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>

namespace zero::dist {
namespace {

using testing::BetweenHosts;
using testing::on_ranks;
using testing::RankOptions;
using testing::ranks_ended;

// A rank says that it is there with a file, and waits for those of the others.
void meet_in(const std::filesystem::path& folder, int rank, const std::vector<int>& others) {
  std::ofstream{folder / std::to_string(rank)};
  for (const int other : others) {
    while (!std::filesystem::exists(folder / std::to_string(other))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until it looks again
    }
  }
}

// The first rank of the last of `hosts` hosts of two ranks is lost. All others hear of it, not only
// when those end that heard of it first. `late` calls, or is lost, when the others have begun.
void expect_known_to_all(int hosts, int late, const std::function<Work(Communicator&)>& start) {
  const BetweenHosts forced("hierarchical");
  const testing::TestFolder folder;
  const int size = 2 * hosts, victim = size - 2;
  std::vector<int> host_of, others;
  for (int rank = 0; rank < size; ++rank) {
    host_of.push_back(rank / 2);
    if (rank != victim) others.push_back(rank);
  }
  const RankOptions options{.world_size = size,
                            .timeout = std::chrono::minutes(5),
                            .total_timeout = std::chrono::seconds(40)};
  auto exits = ranks_ended(options, [&](Communicator& c) {
    c.set_hosts(host_of);
    c.barrier();
    // No rank can tell that it waits inside the call.
    if (c.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (c.rank() == victim) ::raise(SIGKILL);
    try {
      start(c).wait();
    } catch (const Error&) {
      meet_in(folder.path(), c.rank(), others);
      throw;
    }
  });
  exits.erase(exits.begin() + victim);
  testing::expect_errors(
      exits, ::testing::ContainsRegex("all_(gather|reduce) #.*the connection to rank [0-5]"));
}

Work gather(Communicator& c) {
  return c.all_gather(at::ones({c.size() << 18}), at::ones({1 << 18}), Purpose::kParameter);
}
Work sum(Communicator& c) { return c.all_reduce(at::ones({1 << 20}), Purpose::kGradient); }

// Rank 0 hears of rank 2 from the network, rank 3 inside its host. Rank 1 waits for rank 3.
TEST(HierarchicalFaults, AreKnownToAllWhileAllOthersLive) { expect_known_to_all(2, -1, gather); }

TEST(HierarchicalFaults, BeforeACallAreKnownToAllWhileAllOthersLive) {
  expect_known_to_all(2, 0, gather);
}

// Only rank 2 has a connection to rank 4, and the others wait for each other.
TEST(HierarchicalFaults, InACallAreKnownToAllWhileAllOthersLive) {
  for (const int hosts : {2, 3}) expect_known_to_all(hosts, 2 * hosts - 2, sum);
}

TEST(HierarchicalFaults, ARankThatGivesUpDoesNotWaitForTheOthers) {
  const BetweenHosts forced("hierarchical");
  const testing::TestFolder folder;
  const RankOptions options{.world_size = 4,
                            .timeout = std::chrono::minutes(5),
                            .total_timeout = std::chrono::seconds(20)};
  on_ranks(options, [&](Communicator& c) {
    auto group = c.split({0, 1, 2, 3}, "over hosts");
    group->set_hosts({0, 0, 1, 1});
    if (c.rank() >= 2) {  // they have each other's values, and wait for a sum of the first host
      EXPECT_THROW(
          {
            const Work work = group->all_reduce(at::ones({100}), Purpose::kGradient);
            // Nothing tells that the other's values have come.
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            throw Error("enough");
          },
          Error);
      group.reset();
    }
    meet_in(folder.path(), c.rank(), {2, 3});
  });
}

// A gather does not follow a reduction, and yet its error has that of the reduction in it.
TEST(HierarchicalFaults, OfAReductionAreToldByAGatherBesideIt) {
  const BetweenHosts forced("hierarchical");
  const RankOptions options{.world_size = 4, .timeout = std::chrono::seconds(2)};
  on_ranks(options, [](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    if (c.rank() == 3) {  // it calls neither
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return;
    }
    Work reduction = sum(c);
    std::this_thread::sleep_for(std::chrono::seconds(1));  // so that its time is over first
    Work gathered = gather(c);
    testing::expect_error([&] { gathered.wait(); }, {"all_reduce #"});
    testing::expect_error([&] { reduction.wait(); }, {"all_reduce #"});
  });
}

// Large enough to be struck in the middle: many windows in each lane.
constexpr std::int64_t kLong = 3 << 20;

std::vector<std::pair<const char*, std::function<Work(Communicator&)>>> long_operations() {
  const auto whole = [] { return at::ones({kLong}); };
  const auto piece = [](Communicator& c) { return at::ones({kLong / c.size()}); };
  return {
      {"all_gather",
       [=](Communicator& c) { return c.all_gather(whole(), piece(c), Purpose::kParameter); }},
      {"broadcast", [=](Communicator& c) { return c.broadcast(whole(), 1, Purpose::kParameter); }},
      {"reduce", [=](Communicator& c) { return c.reduce(whole(), 2, Purpose::kGradient); }},
      {"reduce_scatter",
       [=](Communicator& c) { return c.reduce_scatter(piece(c), whole(), Purpose::kGradient); }},
      {"all_reduce", [=](Communicator& c) { return c.all_reduce(whole(), Purpose::kGradient); }},
  };
}

// Memory that the ranks share.
struct Victim {
  std::atomic<int> pid, errors;
};

// `signal` strikes the victim before it starts the operation, or when it has. All others of the
// ranks end by themselves, with an error that names the operation and a rank; the last of them ends
// a victim that is stopped, so that nobody waits for it.
void expect_named_errors(const std::function<Work(Communicator&)>& start, int signal, int victim,
                         bool started, int ranks, int hosts) {
  const BetweenHosts forced("hierarchical");
  const RankOptions options{.world_size = ranks, .timeout = ranks * std::chrono::milliseconds(250)};
  void* const memory = ::mmap(nullptr, sizeof(Victim), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  auto& shared = *new (memory) Victim{};
  std::vector<RankExit> others = ranks_ended(options, [&](Communicator& c) {
    std::vector<int> host_of;
    for (int rank = 0; rank < ranks; ++rank) host_of.push_back(rank * hosts / ranks);
    c.set_hosts(host_of);
    if (c.rank() == victim) shared.pid = ::getpid();
    c.barrier();
    try {
      if (!started && c.rank() == victim) ::raise(signal);
      Work work = start(c);
      if (started && c.rank() == victim) ::raise(signal);
      work.wait();
      c.barrier();  // for what is complete without the victim
    } catch (const Error&) {
      if (++shared.errors == ranks - 1) ::kill(shared.pid, SIGKILL);
      throw;
    }
  });
  ::munmap(memory, sizeof(Victim));
  others.erase(others.begin() + victim);
  testing::expect_errors(
      others, ::testing::ContainsRegex("(all_gather|broadcast|reduce|reduce_scatter|all_reduce|"
                                       "barrier) #.* rank [0-7]"));
}

void expect_errors_where_one_is_killed(int ranks, int hosts) {
  for (const auto& [name, start] : long_operations()) {
    for (int victim = 0; victim < ranks; ++victim) {
      for (const bool started : {false, true}) {
        SCOPED_TRACE(fmt::format("{} on {} hosts, rank {} of {}, {}", name, hosts, victim, ranks,
                                 started ? "started" : "before"));
        expect_named_errors(start, SIGKILL, victim, started, ranks, hosts);
      }
    }
  }
}

// Of each operation another rank: this waits for the time limit.
void expect_errors_where_one_is_stopped(int ranks, int hosts) {
  int victim = 0;
  for (const auto& [name, start] : long_operations()) {
    for (const bool started : {false, true}) {
      SCOPED_TRACE(fmt::format("{} on {} hosts, rank {} of {}, {}", name, hosts, victim, ranks,
                               started ? "started" : "before"));
      expect_named_errors(start, SIGSTOP, victim, started, ranks, hosts);
    }
    victim = (victim + 1) % ranks;
  }
}

TEST(HierarchicalFaults, AKilledRankIsAnErrorOnAllOthers) {
  expect_errors_where_one_is_killed(4, 2);
}
TEST(HierarchicalFaults, AStoppedRankIsAnErrorOnAllOthersWhenTimeIsUp) {
  expect_errors_where_one_is_stopped(4, 2);
}
TEST(SlowHierarchicalFaults, AreErrorsOnMoreHosts) {
  expect_errors_where_one_is_killed(6, 3);
  expect_errors_where_one_is_stopped(6, 3);
}
TEST(SlowHierarchicalFaults, AreErrorsOnLargerHosts) {
  expect_errors_where_one_is_killed(8, 2);
  expect_errors_where_one_is_stopped(8, 2);
}

// Rank 2 waits for the other rank of its host, which is its rank 1 there. Those of the other host
// live on until it has heard of it.
TEST(HierarchicalFaults, NameARankByItsNumberAmongAll) {
  const BetweenHosts forced("hierarchical");
  const testing::TestFolder folder;
  const auto exits = ranks_ended({.world_size = 4}, [&](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    c.barrier();
    if (c.rank() == 3) ::raise(SIGKILL);
    if (c.rank() < 2) return meet_in(folder.path(), c.rank(), {2});
    const at::Tensor whole = at::ones({400}), piece = at::empty({100});
    Work work = c.reduce_scatter(piece, whole, Purpose::kGradient);
    try {
      work.wait();
    } catch (const Error&) {
      meet_in(folder.path(), c.rank(), {});
      throw;
    }
  });
  testing::expect_errors({exits[2]}, ::testing::HasSubstr("the connection to rank 3 is gone"));
}

// Long before the time limit.
TEST(HierarchicalFaults, RanksInDifferentCallsHearOfBoth) {
  const BetweenHosts forced("hierarchical");
  const RankOptions options{.world_size = 4, .timeout = std::chrono::minutes(5)};
  const auto exits = ranks_ended(options, [](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    at::Tensor tensor = at::ones({100});
    if (c.rank() == 0) {
      c.broadcast(tensor, 1, Purpose::kParameter).wait();
    } else {
      c.all_reduce(tensor, Purpose::kParameter).wait();
    }
    c.barrier();
  });
  testing::expect_errors(exits, ::testing::AllOf(::testing::HasSubstr("broadcast of 100 Float"),
                                                 ::testing::HasSubstr("all_reduce of 100 Float")));
}

}  // namespace
}  // namespace zero::dist

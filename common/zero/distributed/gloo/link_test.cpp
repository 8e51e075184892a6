// ZERO_LINK: known bytes take bytes / rate between hosts, by either way of each host, and arrive as
// they were. The hosts are this machine's ranks, by ZERO_RANKS_PER_HOST.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/set_variable.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/environment.hpp>
#include <zero/distributed/mesh.hpp>

namespace zero::dist {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;
using testing::SetVariable;

struct Network {
  Network(const std::string& rate, int ranks_per_host)
      : link("ZERO_LINK", rate), hosts("ZERO_RANKS_PER_HOST", std::to_string(ranks_per_host)) {}
  SetVariable link, hosts;
};

constexpr std::int64_t kBytes = 2'000'000;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Each pair is a sender of kBytes and who receives them; all send at once. Seconds from the first
// send to the last arrival.
double seconds_of(Communicator& c, const std::vector<std::pair<int, int>>& messages) {
  c.barrier();
  const at::Tensor received = at::zeros({kBytes}, at::kByte);
  std::vector<Work> work;
  const double begin = now();
  for (const auto& [from, to] : messages) {
    if (c.rank() == to) work.push_back(c.recv(received, from, Purpose::kParameter));
    if (c.rank() != from) continue;
    work.push_back(c.send(at::full({kBytes}, from + 1, at::kByte), to, Purpose::kParameter));
  }
  for (Work& one : work) one.wait();
  const double end = now();
  double first = end, last = begin;
  for (const std::string& said : c.exchange(fmt::format("{} {} {}", begin, end, work.size()))) {
    double b = 0, e = 0;
    int count = 0;
    std::istringstream(said) >> b >> e >> count;
    if (count == 0) continue;
    first = std::min(first, b);
    last = std::max(last, e);
  }
  return last - first;
}

// As above, on a network where it takes `seconds`: never less, and at best hardly more. A busy
// machine needs some attempts; a network that is slower by itself never gets there.
void expect_seconds(Communicator& c, const std::vector<std::pair<int, int>>& messages,
                    double seconds) {
  double best = 1e9;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const double taken = seconds_of(c, messages);
    EXPECT_GE(taken, seconds);
    best = std::min(best, taken);
    const bool ends = attempt >= 4 && best <= 1.1 * seconds;
    if (c.exchange(ends ? "ends" : "goes on").front() == "ends") break;
  }
  EXPECT_LE(best, 1.1 * seconds);
}

TEST(Link, TakesBytesByRate) {
  for (const auto& [rate, bytes_per_second] :
       {std::pair{"80mbit", 10e6}, {"0.2gbit", 25e6}, {"40MB/s", 40e6}}) {
    SCOPED_TRACE(rate);
    const Network network(rate, 1);
    on_ranks(2, [&](Communicator& c) {
      expect_seconds(c, {{0, 1}}, static_cast<double>(kBytes) / bytes_per_second);
    });
  }
}

TEST(Link, IsAWayOutAndAWayInOfEachHostForAllItsRanks) {
  struct Case {
    const char* what;
    int ranks, per_host;
    std::vector<std::pair<int, int>> messages;
    double times;  // as long as one message
  };
  for (const Case& one : {Case{"both ways at once", 2, 1, {{0, 1}, {1, 0}}, 1},
                          {"out of a host of two ranks", 4, 2, {{0, 2}, {1, 3}}, 2},
                          {"out of one host to two", 3, 1, {{0, 1}, {0, 2}}, 2},
                          {"into one host from two", 4, 1, {{1, 0}, {2, 0}}, 2},
                          {"between different hosts", 4, 1, {{0, 1}, {2, 3}}, 1}}) {
    SCOPED_TRACE(one.what);
    const Network network("20MB/s", one.per_host);
    on_ranks(one.ranks,
             [&](Communicator& c) { expect_seconds(c, one.messages, one.times * kBytes / 20e6); });
  }
}

TEST(Link, IsNotForRanksOfOneHost) {
  const Network network("1mbit", 2);
  const SetVariable fastest("ZERO_TRANSPORT", "auto");
  on_ranks(4, [](Communicator& c) {
    // 16 s over the link.
    EXPECT_LT(seconds_of(c, {{0, 1}, {2, 3}}), 4);
    EXPECT_THAT(c.transport(), HasSubstr("is on another host"));
    Mesh mesh(c, {{"host", Mesh::kRest}, {"rank", Mesh::kRanksOfHost}});
    EXPECT_EQ(mesh.text(), "host 2 x rank 2");
    EXPECT_EQ(mesh.along("rank").transport(), "one copy within the host");
    EXPECT_THAT(mesh.along("host").transport(), HasSubstr("TCP"));
  });
}

TEST(Link, RefusesWhatIsNoRateAndNoNumberOfRanks) {
  for (const char* const wrong :
       {"fast", "100", "100mbps", "0mbit", "-1gbit", "nanmbit", " 1gbit", "1gbit ", "mbit"}) {
    const SetVariable set("ZERO_LINK", wrong);
    testing::expect_error([] { link_rate(); },
                          {fmt::format("ZERO_LINK='{}'", wrong), "100mbit, 1gbit or 30MB/s"});
  }
  const auto expect_refused = [](const std::string& says) {
    testing::expect_errors(testing::ranks_ended({}, [](Communicator&) {}), HasSubstr(says));
  };
  {
    const Network network("1gb", 1);
    expect_refused("ZERO_LINK='1gb' makes no sense");
  }
  const SetVariable none("ZERO_RANKS_PER_HOST", "0");
  expect_refused("ZERO_RANKS_PER_HOST='0' makes no sense");
}

TEST(Link, TheWayBetweenHostsIsNoChoiceAnyMore) {
  const SetVariable set("ZERO_BETWEEN_HOSTS", "hierarchical");
  testing::expect_errors(testing::ranks_ended({}, [](Communicator&) {}),
                         HasSubstr("ZERO_BETWEEN_HOSTS was removed: "));
}

}  // namespace
}  // namespace zero::dist

// What leaves a host, counted message by message: the formulas of hosts.hpp, and the numbers about
// hosts in lessons 06 and 07.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>

#include "planner.hpp"

namespace zero::plan {
namespace {

using Ranks = std::vector<int>;  // of a collective, in the order of its ring

// R hosts of S consecutive ranks, and the bytes that have left each.
class Cluster {
 public:
  Cluster(int hosts, int per_host)
      : hosts(hosts), per_host(per_host), left_(static_cast<std::size_t>(hosts)) {}

  const int hosts, per_host;

  void send(int from, int to, double bytes) {
    ASSERT_NE(from, to);
    if (from / per_host != to / per_host) left_[static_cast<std::size_t>(from / per_host)] += bytes;
  }

  Ranks all() const {
    Ranks ranks(static_cast<std::size_t>(hosts * per_host));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  Ranks of_host(int host) const {
    Ranks ranks(static_cast<std::size_t>(per_host));
    std::iota(ranks.begin(), ranks.end(), host * per_host);
    return ranks;
  }
  // The ranks of a place, one on each host.
  Ranks of_place(int place) const {
    Ranks ranks;
    for (int host = 0; host < hosts; ++host) ranks.push_back(host * per_host + place);
    return ranks;
  }

  // The same from every host.
  double leaves_a_host() const {
    for (const double bytes : left_) EXPECT_NEAR(bytes, left_.front(), 1e-9);
    return left_.front();
  }
  double mean() const { return std::accumulate(left_.begin(), left_.end(), 0.0) / hosts; }

 private:
  std::vector<double> left_;
};

// Whose part of piece p rank r has: a bit for each rank of the collective.
using Has = std::vector<std::vector<std::uint64_t>>;

// Each of n ranks has its own part of every piece; in the end rank p has piece p of all. In a ring
// the sum of piece p begins at rank p+1 and goes once round. A reduction to the owner of piece p
// goes the same way.
void reduce_scatter(Cluster& cluster, const Ranks& ranks, double bytes, Sending sending) {
  const std::size_t n = ranks.size();
  Has has(n, std::vector<std::uint64_t>(n));
  for (std::size_t r = 0; r < n; ++r) has[r].assign(n, std::uint64_t{1} << r);
  const auto add = [&](std::size_t from, std::size_t to, std::size_t piece) {
    EXPECT_EQ(has[to][piece] & has[from][piece], 0U) << "added twice";
    has[to][piece] |= has[from][piece];
    cluster.send(ranks[from], ranks[to], bytes / static_cast<double>(n));
  };
  for (std::size_t step = 1; step < n; ++step) {
    for (std::size_t r = 0; r < n; ++r) {
      if (sending == Sending::kRing) {
        add(r, (r + 1) % n, (r + n - step) % n);
      } else {
        add(r, (r + step) % n, (r + step) % n);
      }
    }
  }
  for (std::size_t r = 0; r < n; ++r) {
    EXPECT_EQ(has[r][r], n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1);
  }
}

// Rank p has piece p, in the end all have all. In a ring a piece goes from rank to rank. An owner's
// broadcast of piece p goes the same way.
void all_gather(Cluster& cluster, const Ranks& ranks, double bytes, Sending sending) {
  const std::size_t n = ranks.size();
  std::vector<std::vector<bool>> has(n, std::vector<bool>(n));
  for (std::size_t r = 0; r < n; ++r) has[r][r] = true;
  const auto copy = [&](std::size_t from, std::size_t to, std::size_t piece) {
    EXPECT_TRUE(has[from][piece] && !has[to][piece]);
    has[to][piece] = true;
    cluster.send(ranks[from], ranks[to], bytes / static_cast<double>(n));
  };
  for (std::size_t step = 1; step < n; ++step) {
    for (std::size_t r = 0; r < n; ++r) {
      if (sending == Sending::kRing) {
        copy(r, (r + 1) % n, (r + n - step + 1) % n);
      } else {
        copy(r, (r + step) % n, r);
      }
    }
  }
  for (const auto& pieces : has) EXPECT_THAT(pieces, ::testing::Each(true));
}

void all_reduce(Cluster& cluster, const Ranks& ranks, double bytes, Sending sending) {
  reduce_scatter(cluster, ranks, bytes, sending);
  all_gather(cluster, ranks, bytes, sending);
}

// A message of its own for each pair.
void all_to_all(Cluster& cluster, const Ranks& ranks, double message) {
  for (const int from : ranks) {
    for (const int to : ranks) {
      if (from != to) cluster.send(from, to, message);
    }
  }
}

// In V, values of `value` bytes without scales; `root` is the root's part of V.
struct Step {
  Cluster cluster;
  Sending sending;
  double root = 0, value = 4;

  void gather(double bytes) { all_gather(cluster, cluster.all(), bytes, sending); }
  void gather_inside(double bytes) {
    for (int h = 0; h < cluster.hosts; ++h) {
      all_gather(cluster, cluster.of_host(h), bytes, sending);
    }
  }
  void reduce() { reduce_scatter(cluster, cluster.all(), 1, sending); }
  // qgZ: R packed shards to each place of the host, one sum to each other host.
  void reduce_in_two_hops() {
    const double shard = 0.5 / value / (cluster.hosts * cluster.per_host);
    for (int h = 0; h < cluster.hosts; ++h) {
      all_to_all(cluster, cluster.of_host(h), cluster.hosts * shard);
    }
    for (int p = 0; p < cluster.per_host; ++p) all_to_all(cluster, cluster.of_place(p), shard);
  }
  void hsdp3() {
    gather_inside(1);
    gather_inside(1 - root);
    for (int h = 0; h < cluster.hosts; ++h) {
      reduce_scatter(cluster, cluster.of_host(h), 1, sending);
    }
    for (int p = 0; p < cluster.per_host; ++p) {
      all_reduce(cluster, cluster.of_place(p), 1.0 / cluster.per_host, sending);
    }
  }
};

// What a mode does in a step, and the formula of the lessons: with a = (N-1)/N in a ring and
// S (R-1)/R directly, and b = (R-1)/R.
struct Way {
  const char* mode;
  std::function<void(Step&)> run;
  std::function<double(double a, double b, double g)> formula;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"engine3", [](Step& s) { s.gather(1), s.gather(1 - s.root), s.reduce(); },
       [](double a, double, double g) { return (3 - g) * a; }},
      {"hsdp3", [](Step& s) { s.hsdp3(); }, [](double, double b, double) { return 2 * b; }},
      {"hpz", [](Step& s) { s.gather(1), s.gather_inside(1 - s.root), s.reduce(); },
       [](double a, double, double) { return 2 * a; }},
      {"qwz", [](Step& s) { s.gather(1 / s.value), s.gather((1 - s.root) / s.value), s.reduce(); },
       [](double a, double, double g) { return (1.5 - g / 4) * a; }},
      {"qgz", [](Step& s) { s.gather(1), s.gather(1 - s.root), s.reduce_in_two_hops(); },
       [](double a, double b, double g) { return (2 - g) * a + b / 8; }},
      {"zeropp",
       [](Step& s) {
         s.gather(1 / s.value), s.gather_inside((1 - s.root) / s.value), s.reduce_in_two_hops();
       },
       [](double a, double b, double) { return a / 4 + b / 8; }}};
  return all;
}

double leaves_a_host(const std::string& mode, int hosts, int per_host, Sending sending,
                     double root = 0, double value = 4) {
  Step step{{hosts, per_host}, sending, root, value};
  if (mode == "engine1") step.reduce(), step.gather(1);
  for (const Way& way : ways()) {
    if (way.mode == mode) way.run(step);
  }
  return step.cluster.leaves_a_host();
}

// R and S.
const std::vector<std::pair<int, int>> kClusters = {{2, 1}, {2, 2}, {2, 3}, {3, 2}, {4, 1},
                                                    {2, 8}, {4, 8}, {3, 7}, {8, 8}};

// In V, of a gather or a reduction.
double crossing(int hosts, int per_host, Sending sending) {
  const double n = hosts * per_host;
  return sending == Sending::kRing ? (n - 1) / n : per_host * (hosts - 1.0) / hosts;
}

TEST(HostMessages, OfCollectivesOverAllRanksAreThoseOfTheFormulas) {
  for (const auto& [hosts, per_host] : kClusters) {
    for (const Sending sending : {Sending::kRing, Sending::kDirect}) {
      const double a = crossing(hosts, per_host, sending);
      for (const auto& [collective, copies] :
           {std::pair{&all_gather, 1}, {&reduce_scatter, 1}, {&all_reduce, 2}}) {
        Cluster cluster(hosts, per_host);
        collective(cluster, cluster.all(), 12, sending);
        EXPECT_NEAR(cluster.leaves_a_host(), 12 * copies * a, 1e-9) << hosts << " x " << per_host;
      }
    }
  }
}

TEST(HostMessages, OfEachModeAreThoseOfTheLessonsAndOfThePlanner) {
  constexpr double kRoot = 0.25;
  Request request;
  request.policy = fp32();
  request.model = model_of_size(kBillion, 10);
  request.model.root = kBillion / 4;
  request.hosts.block = request.hosts.gradient_block = std::int64_t{1} << 60;  // no scales
  for (const auto& [hosts, per_host] : kClusters) {
    request.world_size = hosts * per_host;
    request.hosts.ranks_per_host = per_host;
    const std::vector<HostPlan> plans = make_plan(request).hosts;
    ASSERT_EQ(plans.size(), ways().size());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Way& way = ways()[i];
      SCOPED_TRACE(fmt::format("{} ({}) on {} x {}", way.mode, plans[i].name, hosts, per_host));
      for (const Sending sending : {Sending::kRing, Sending::kDirect}) {
        const double counted = leaves_a_host(way.mode, hosts, per_host, sending, kRoot);
        const double b = (hosts - 1.0) / hosts;
        const double a = crossing(hosts, per_host, sending);
        EXPECT_NEAR(counted, way.formula(a, b, kRoot), 1e-9);
        const double planned =
            sending == Sending::kRing ? plans[i].leaves_by_ring : plans[i].leaves_here;
        EXPECT_NEAR(planned / 4e9, counted, 1e-9);
      }
    }
  }
}

// Ranks that alternate between hosts: every message leaves one.
TEST(HostMessages, OfARingInAnotherOrderAreUpToSTimesAsMany) {
  Cluster in_order(2, 8), alternating(2, 8);
  Ranks ranks;
  for (int place = 0; place < 8; ++place) {
    for (const int rank : alternating.of_place(place)) ranks.push_back(rank);
  }
  all_gather(in_order, in_order.all(), 1, Sending::kRing);
  all_gather(alternating, ranks, 1, Sending::kRing);
  EXPECT_DOUBLE_EQ(alternating.leaves_a_host(), 8 * in_order.leaves_a_host());
}

// Along a tree of hosts V goes up each edge and the sum down again, whatever its shape.
TEST(HostMessages, OfAnAllReduceAlongATreeAreThoseOfHsdpOnAverage) {
  for (const int hosts : {2, 3, 4, 8}) {
    Cluster cluster(hosts, 1);
    for (int host = 1; host < hosts; ++host) {
      cluster.send(host, (host - 1) / 2, 1);
      cluster.send((host - 1) / 2, host, 1);
    }
    EXPECT_DOUBLE_EQ(cluster.mean(), leaves_a_host("hsdp3", hosts, 8, Sending::kRing));
  }
}

// In a ring ZeRO++ sends less than half of what HSDP does, with values of 4 bytes, and less with 2.
TEST(HostMessages, OfZeroPlusPlusAreFewerThanOfHsdpInARing) {
  for (const int hosts : {2, 3, 4, 8}) {
    for (int per_host = 1; per_host <= 8; ++per_host) {
      for (const int value : {4, 2}) {
        const auto sent = [&](const char* mode) {
          return leaves_a_host(mode, hosts, per_host, Sending::kRing, 0, value);
        };
        EXPECT_LT(sent("zeropp"), value == 4 ? sent("hsdp3") / 2 : sent("hsdp3"));
      }
    }
  }
}

// ---- the numbers of the lessons ----

// A page as one line.
std::string page(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// "2.8125": in V, without the root, four decimals without zeros at the end.
std::string number(const std::string& mode, int hosts, int per_host, Sending sending) {
  std::string digits = fmt::format("{:.4f}", leaves_a_host(mode, hosts, per_host, sending));
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.ends_with('.')) digits.pop_back();
  return digits;
}

TEST(HostMessages, StandInLesson06) {
  const std::string text = page("06_hsdp/README.md");
  const auto in_ring = [](const char* mode, int hosts) {
    return number(mode, hosts, 8, Sending::kRing);
  };
  const auto here = [](const char* mode, int hosts) {
    return number(mode, hosts, 8, Sending::kDirect);
  };
  const auto row = [&](const char* name, const char* formula, const char* mode) {
    return fmt::format("| {} | {} | {} | {} | {} | {} |", name, formula, in_ring(mode, 2),
                       in_ring(mode, 4), here(mode, 2), here(mode, 4));
  };
  for (const std::string& words :
       {row("chapter 05, stages 1 and 2", "2a", "engine1"),
        row("chapter 05, stage 3", "(3 - g) a", "engine3"),
        row("HSDP, every stage", "2 (R-1)/R", "hsdp3"),
        fmt::format("{} V leave each host in a ring and {} V here", in_ring("engine3", 2),
                    here("engine3", 2)),
        fmt::format("A host sends 8 x 0.1875 V = {} V.", in_ring("hsdp3", 4)),
        fmt::format(
            "sends 3V x 31/32 = {} V. A host sends as much in a ring, and 3V x 8 x 3/4 = {} V "
            "here",
            in_ring("engine3", 4), here("engine3", 4))}) {
    EXPECT_THAT(text, ::testing::HasSubstr(words));
  }
}

TEST(HostMessages, StandInLesson07) {
  const std::string text = page("07_zero_plus_plus/README.md");
  const auto both = [](const char* mode, int hosts, int per_host, const char* between) {
    return number(mode, hosts, per_host, Sending::kRing) + between +
           number(mode, hosts, per_host, Sending::kDirect);
  };
  std::vector<std::string> all;
  for (const auto& [mode, formula] : {std::pair{"engine3", "(3 - g) a"},
                                      {"hpz", "2a"},
                                      {"qwz", "(1.5 - g/4) a"},
                                      {"qgz", "(2 - g) a + b/8"},
                                      {"zeropp", "a/4 + b/8"},
                                      {"hsdp3", "2b"}}) {
    all.push_back(fmt::format("| `{}` | {} | {} | {} |", mode, formula, both(mode, 2, 2, " | "),
                              both(mode, 2, 8, " | ")));
  }
  // On paper.
  all.push_back(fmt::format("engine3: {} V here", both("engine3", 4, 8, " V in a ring, ")));
  for (const auto& [name, mode] : {std::pair{"hpZ", "hpz"}, {"zeropp", "zeropp"}}) {
    all.push_back(fmt::format("{}: {} V;", name, both(mode, 4, 8, " V, ")));
  }
  all.push_back(fmt::format("hsdp3: {} V;", number("hsdp3", 4, 8, Sending::kRing)));
  // Predict, then run: from each of two ranks of a host.
  const auto predicted = [](const char* mode) {
    return leaves_a_host(mode, 2, 2, Sending::kDirect, /*root=*/0.2105) / 2;
  };
  all.push_back(fmt::format("to the other group much less: {:.4f} V, not {:.4f} V.",
                            predicted("hpz"), predicted("engine3")));
  for (const std::string& words : all) EXPECT_THAT(text, ::testing::HasSubstr(words));
}

}  // namespace
}  // namespace zero::plan

// What leaves a host, counted message by message: the planner's bytes, and the numbers about hosts
// in lessons 06 and 07, which have direct sends beside a ring.
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

enum class Sending { kRing, kDirect };  // to the next rank, or from each to each

// A step on R hosts of S consecutive ranks, in V: values of `value` bytes without scales, of which
// the root has the part `root`.
struct Step {
  int hosts, per_host;
  Sending sending = Sending::kRing;
  double root = 0, value = 4;
  std::vector<double> left = std::vector<double>(static_cast<std::size_t>(hosts));  // each host

  void send(int from, int to, double bytes) {
    if (from / per_host != to / per_host) left[static_cast<std::size_t>(from / per_host)] += bytes;
  }
  Ranks ranks(int first, int step, int count) const {
    Ranks all(static_cast<std::size_t>(count), first);
    for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] += i * step;
    return all;
  }
  Ranks all() const { return ranks(0, 1, hosts * per_host); }
  // A gather or a reduction: each rank sends n-1 of n pieces, in a ring to the next rank.
  void move(const Ranks& of, double bytes) {
    const std::size_t n = of.size();
    for (std::size_t hop = 1; hop < n; ++hop) {
      for (std::size_t r = 0; r < n; ++r) {
        send(of[r], of[(r + (sending == Sending::kRing ? 1 : hop)) % n],
             bytes / static_cast<double>(n));
      }
    }
  }
  void over_all(double bytes) { move(all(), bytes); }
  void inside(double bytes) {
    for (int h = 0; h < hosts; ++h) move(ranks(h * per_host, 1, per_host), bytes);
  }
  // Between the ranks of a place, one on each host.
  void between(double bytes) {
    for (int p = 0; p < per_host; ++p) move(ranks(p, per_host, hosts), bytes);
  }
  // The second hop of qgZ: a packed sum to each other host, whatever the others do.
  void all_to_all_between() {
    for (const int from : all()) {
      for (int host = 0; host < hosts; ++host) {
        send(from, host * per_host + from % per_host, 0.5 / value / (hosts * per_host));
      }
    }
  }
  // The same from every host.
  double leaves_a_host() const {
    for (const double bytes : left) EXPECT_NEAR(bytes, left.front(), 1e-9);
    return left.front();
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
      {"engine3", [](Step& s) { s.over_all(1), s.over_all(1 - s.root), s.over_all(1); },
       [](double a, double, double g) { return (3 - g) * a; }},
      {"hsdp3",
       [](Step& s) { s.inside(3 - s.root), s.between(2.0 / s.per_host); },  // an all-reduce: 2
       [](double, double b, double) { return 2 * b; }},
      {"hpz", [](Step& s) { s.over_all(1), s.inside(1 - s.root), s.over_all(1); },
       [](double a, double, double) { return 2 * a; }},
      {"qwz", [](Step& s) { s.over_all((2 - s.root) / s.value), s.over_all(1); },
       [](double a, double, double g) { return (1.5 - g / 4) * a; }},
      {"qgz", [](Step& s) { s.over_all(2 - s.root), s.all_to_all_between(); },
       [](double a, double b, double g) { return (2 - g) * a + b / 8; }},
      {"zeropp", [](Step& s) { s.over_all(1 / s.value), s.inside(1), s.all_to_all_between(); },
       [](double a, double b, double) { return a / 4 + b / 8; }},
      {"engine1", [](Step& s) { s.over_all(2); }, [](double a, double, double) { return 2 * a; }}};
  return all;
}

double leaves_a_host(const std::string& mode, Step step) {
  std::ranges::find(ways(), mode, &Way::mode)->run(step);
  return step.leaves_a_host();
}

TEST(HostMessages, OfEachModeAreThoseOfTheLessonsAndOfThePlanner) {
  constexpr double kRoot = 0.25;
  Request request;
  request.policy = fp32();
  request.model = model_of_size(kBillion, 10);
  request.model.root = kBillion / 4;
  request.hosts.block = request.hosts.gradient_block = std::int64_t{1} << 60;  // no scales
  for (const auto& [hosts, per_host] :
       std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {2, 3}, {3, 2}, {4, 1}, {4, 8}, {3, 7}}) {
    request.world_size = hosts * per_host;
    request.hosts.ranks_per_host = per_host;
    const std::vector<HostPlan> plans = make_plan(request).hosts;
    for (std::size_t i = 0; i < ways().size(); ++i) {
      SCOPED_TRACE(fmt::format("{} on {} x {}", ways()[i].mode, hosts, per_host));
      const double n = hosts * per_host, b = (hosts - 1.0) / hosts;
      for (const auto& [sending, a] :
           {std::pair{Sending::kRing, (n - 1) / n}, {Sending::kDirect, per_host * b}}) {
        const double counted = leaves_a_host(ways()[i].mode, {hosts, per_host, sending, kRoot});
        EXPECT_NEAR(counted, ways()[i].formula(a, b, kRoot), 1e-9);
        if (i < plans.size() && sending == Sending::kRing) {
          EXPECT_NEAR(plans[i].leaves / 4e9, counted, 1e-9);
        }
      }
    }
  }
}

// Ranks that alternate between hosts: every message leaves one.
TEST(HostMessages, OfARingInAnotherOrderAreUpToSTimesAsMany) {
  Step in_order{2, 8}, alternating{2, 8};
  Ranks ranks;
  for (int place = 0; place < 8; ++place) ranks.insert(ranks.end(), {place, 8 + place});
  in_order.over_all(1);
  alternating.move(ranks, 1);
  EXPECT_DOUBLE_EQ(alternating.leaves_a_host(), 8 * in_order.leaves_a_host());
}

// In a ring ZeRO++ sends less than half of what HSDP does, with values of 4 bytes, and less with 2.
TEST(HostMessages, OfZeroPlusPlusAreFewerThanOfHsdpInARing) {
  for (const int hosts : {2, 3, 8}) {
    for (int per_host = 1; per_host <= 8; ++per_host) {
      for (const double value : {4, 2}) {
        const auto sent = [&](const char* mode) {
          return leaves_a_host(mode, {hosts, per_host, Sending::kRing, 0, value});
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
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// "2.8125": in V, without the root, four decimals without zeros at the end.
std::string number(const std::string& mode, int hosts, int per_host, Sending sending) {
  std::string digits = fmt::format("{:.4f}", leaves_a_host(mode, {hosts, per_host, sending}));
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.ends_with('.')) digits.pop_back();
  return digits;
}

TEST(HostMessages, StandInLesson06) {
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
        fmt::format("sends 3V x 31/32 = {} V. A host sends as much in a ring, and 3V x 8 x 3/4 = "
                    "{} V here",
                    in_ring("engine3", 4), here("engine3", 4))}) {
    EXPECT_THAT(page("06_hsdp/README.md"), ::testing::HasSubstr(words));
  }
}

TEST(HostMessages, StandInLesson07) {
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
    return leaves_a_host(mode, {2, 2, Sending::kDirect, /*root=*/0.2105}) / 2;
  };
  all.push_back(fmt::format("to the other group much less: {:.4f} V, not {:.4f} V.",
                            predicted("hpz"), predicted("engine3")));
  for (const std::string& words : all) {
    EXPECT_THAT(page("07_zero_plus_plus/README.md"), ::testing::HasSubstr(words));
  }
}

}  // namespace
}  // namespace zero::plan

// Compares the numbers with every lookahead, tried out.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include <grading/check.hpp>

namespace exercise_05c {

struct Pass {
  std::vector<double> gather, compute;  // ms
  int room;
};
const std::vector<Pass> kPasses = {{{8, 8, 8, 8, 8, 8}, {10, 10, 10, 10, 10, 10}, 5},
                                   {{12, 3, 3, 3, 25, 3}, {10, 10, 10, 4, 10, 10}, 5},
                                   {{4, 4, 4, 4, 4, 4}, {2, 2, 9, 9, 2, 9}, 5},
                                   {{16, 16, 16, 16, 16, 16}, {10, 10, 10, 10, 10, 10}, 5},
                                   {{4, 4, 4, 4, 14, 18}, {10, 10, 10, 10, 10, 10}, 5},
                                   {{2, 2, 2, 22, 4, 4}, {8, 8, 8, 8, 8, 8}, 2}};
constexpr int kUnits = 6;

double sum(const std::vector<double>& ms) { return std::accumulate(ms.begin(), ms.end(), 0.0); }

// What the pass takes beyond its computing. The link carries one gather after the other.
double exposed(const Pass& pass, int k) {
  std::vector<double> here(kUnits);
  double now = 0, link_free = 0;
  int requested = 0;
  for (int unit = 0; unit < kUnits; ++unit) {
    for (; requested <= std::min(unit + k, kUnits - 1); ++requested) {
      link_free = std::max(link_free, now) + pass.gather[requested];
      here[requested] = link_free;
    }
    now = std::max(now, here[unit]) + pass.compute[unit];
  }
  return now - sum(pass.compute);
}

int best(const Pass& pass) {
  int k = 0;
  for (int tried = 1; tried <= pass.room; ++tried) {
    if (exposed(pass, tried) < exposed(pass, k)) k = tried;
  }
  return k;
}

void check(const zero::exercise::Numbers& numbers) {
  const std::vector<std::vector<zero::exercise::Numbers::Known>> known = {
      {},
      {{1, "does not hide the gather of 25 ms: the unit before it computes for 4"},
       {2, "does not hide the gather of 25 ms: the two units before it compute for 14"},
       {3, "divides by the mean compute time: the units before the large one take less"}},
      {{1, "is right if every gather fit behind one unit of the mean length; two units are short"}},
      {{2, "gives a link of its own to every gather: with one link it hides no more"},
       {3, "waits as long with a smaller k"},
       {4, "waits as long with a smaller k"},
       {5, "waits as long with a smaller k"}},
      {{2,
        "is enough for each gather by itself: the link is still busy with the gather of "
        "14 ms when that of 18 ms is asked for"}},
      {{3, "needs more room than there is"}}};
  for (std::size_t i = 0; i < kPasses.size(); ++i) {
    const Pass& pass = kPasses[i];
    numbers.expect(fmt::format("k_{}", i + 1), best(pass), known[i]);
  }
  numbers.expect(
      "exposed_1", exposed(kPasses[0], best(kPasses[0])),
      {{0, "forgets the first gather, which has nothing before it"}, {48, "is for k = 0"}});
  numbers.expect("exposed_3", exposed(kPasses[2], best(kPasses[2])),
                 {{4,
                   "counts the first gather only: when unit 2 could begin, the second and the "
                   "third gather are in the way"},
                  {24, "is for k = 0"},
                  {10, "is for k = 1"}});
  numbers.expect("exposed_4", exposed(kPasses[3], best(kPasses[3])),
                 {{36, "forgets that the last unit computes when all gathers are over"},
                  {16, "counts the first gather only: the link is too slow for the others as well"},
                  {96, "is the time on the link, or that with k = 0"}});
}

}  // namespace exercise_05c

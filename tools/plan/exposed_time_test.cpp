#include "exposed_time.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

using Times = std::vector<double>;

double exposed(const Times& gather, const Times& compute, std::int64_t k) {
  return exposed_seconds({gather, compute, Times(gather.size(), 0.0)}, k);
}

// The same second by second, for times that are whole numbers: a rank that asks, waits and computes
// beside a link that carries what was asked for, one gather after the other.
int seconds_of_waiting(const Times& gather, const Times& compute, std::size_t k) {
  const std::size_t units = gather.size();
  Times to_carry = gather;
  std::deque<std::size_t> link;
  std::size_t unit = 0, asked = 0;
  double to_compute = compute[0];
  int waited = 0;
  while (true) {
    for (; asked < units && asked <= unit + k; ++asked) {
      if (to_carry[asked] > 0) link.push_back(asked);
    }
    const bool waits = to_carry[unit] > 0;
    if (!waits && to_compute == 0) {
      if (++unit == units) return waited;
      to_compute = compute[unit];
      continue;
    }
    waits ? ++waited : --to_compute;
    if (!link.empty() && --to_carry[link.front()] == 0) link.pop_front();
  }
}

TEST(Lookahead, OfEqualUnitsIsOne) {
  for (const double gather : {2e-3, 4e-3, 8e-3, 16e-3}) {
    EXPECT_EQ(lookahead(Times(32, gather), Times(32, 10e-3)), 1);
  }
  EXPECT_EQ(lookahead(Times{0, 0}, Times{1, 1}), 0);
  EXPECT_EQ(lookahead(Times{5}, Times{1}), 0);  // nothing comes before it
  EXPECT_THROW(lookahead(Times{1}, Times{1, 2}), Error);
  EXPECT_THROW(lookahead(Times{}, Times{}), Error);
}

// The example of the lesson. Each gather of 4 is as long as two units compute. The second of them
// waits on the link until second 6, so unit 3 waits although it was asked for 4 seconds ahead.
TEST(Lookahead, ThatIsAsLongAsEachGatherMayLeaveWaiting) {
  const Times gather = {1, 1, 4, 4, 1, 1, 1}, compute(7, 2.0);
  EXPECT_EQ(exposed(gather, compute, 0), 13);
  EXPECT_EQ(exposed(gather, compute, 1), 5);
  EXPECT_EQ(exposed(gather, compute, 2), 4);  // the first gather, and 3
  EXPECT_EQ(exposed(gather, compute, 6), 4);
  EXPECT_EQ(lookahead(gather, compute), 2);
}

// Exercise 05c has this pass. Behind two units, which compute for 20, each gather fits.
TEST(Lookahead, ReachesFurtherWhereGathersQueue) {
  const Times gather = {4, 4, 4, 4, 14, 18}, compute(6, 10.0);
  EXPECT_EQ(exposed(gather, compute, 2), 6);
  EXPECT_EQ(exposed(gather, compute, 3), 4);
  EXPECT_EQ(lookahead(gather, compute), 3);
}

// All that 4 units of few seconds can be.
TEST(Lookahead, IsTheSmallestThatWaitsLeast) {
  for (int n = 0; n < 1 << 14; ++n) {
    const auto digit = [n](int i) { return static_cast<double>((n >> (2 * i)) & 3); };
    const Times gather = {1, digit(0), 2 * digit(1), 2 * digit(2)};
    const Times compute = {digit(3), digit(4), digit(5), digit(6)};
    std::vector<int> waiting;
    for (std::size_t k = 0; k <= 4; ++k) {
      waiting.push_back(seconds_of_waiting(gather, compute, k));
      ASSERT_EQ(exposed(gather, compute, static_cast<std::int64_t>(k)), waiting[k]) << n;
    }
    const auto best = std::ranges::min_element(waiting) - waiting.begin();
    ASSERT_EQ(lookahead(gather, compute), best) << n;
  }
}

// So many that the time must not grow with the square of their number.
TEST(Lookahead, OfManyUnits) {
  constexpr std::int64_t kUnits = 10'000;
  Times gather(kUnits, 0.0);
  gather.back() = kUnits;
  EXPECT_EQ(lookahead(gather, Times(kUnits, 1.0)), kUnits - 1);
  gather.back() = 9000;
  EXPECT_EQ(lookahead(gather, Times(kUnits, 1.0)), 9000);
}

TEST(Exposed, ReductionsHideBehindTheNextUnit) {
  const Pass backward{Times(4, 0.0), Times(4, 2.0), Times(4, 1.0)};
  EXPECT_DOUBLE_EQ(exposed_seconds(backward, 0), 1);
  const Pass slow{Times(4, 0.0), Times(4, 2.0), Times(4, 3.0)};
  EXPECT_DOUBLE_EQ(exposed_seconds(slow, 0), 2 + 4 * 3 - 8);
}

}  // namespace
}  // namespace zero::plan

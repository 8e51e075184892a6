#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace zero {

/// Seconds that each unit of a pass takes, in their order.
struct UnitTimes {
  std::vector<double> gather;   ///< from the request for a unit until it is whole
  std::vector<double> compute;  ///< from then until the next request
};

/// Times passes in which every unit is gathered on demand, and keeps the least of each number,
/// because all other work on the machine makes the numbers larger.
class PassClock {
 public:
  void begin() { now_ = {}; }
  /// The next unit is requested.
  void asks();
  /// The requested unit is whole and begins to run.
  void runs();
  /// The pass is over.
  void end();

  const UnitTimes& least() const { return least_; }

 private:
  using Clock = std::chrono::steady_clock;
  double lap();
  void close_unit();

  Clock::time_point since_;
  UnitTimes now_;
  UnitTimes least_;
};

/// The least of each time over all ranks, the same on all of them. The rank that comes last to a
/// gather waits for no other, so its time is that of the gather alone. `all_gather` takes this
/// rank's numbers and returns those of all ranks, rank after rank (dist::all_gather_scalars()).
std::vector<UnitTimes> least_over_ranks(
    std::vector<UnitTimes> passes,
    const std::function<std::vector<double>(std::vector<double>)>& all_gather);

/// How far ahead to gather.
struct LookaheadChoice {
  std::int64_t units = 0;
  std::string why;  ///< for people: what it hides, or what limits it
};

/// The smallest lookahead with which no pass waits longer than with any other. train::lookahead()
/// computes the waits, for one link that carries one gather at a time. A wait that is longer by at
/// most 1 % of the pass's computing counts as equal. `why` says what it hides, or what limits it:
///
///   - memory: more than `room` units would have to be whole ahead of time. Then the smallest that
///     waits no longer than `room`.
///   - bandwidth: all gathers together take longer than computing.
///   - the order of the units: gathers wait although together they are shorter than computing,
///     because too little computes before them.
///
/// A pure function: all ranks that call it with the same times choose the same.
LookaheadChoice choose_lookahead(const std::vector<UnitTimes>& passes, std::int64_t room);

}  // namespace zero

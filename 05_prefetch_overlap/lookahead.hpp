#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace zero {

/// Seconds of the units of a pass, in their order.
struct UnitTimes {
  std::vector<double> gather;   ///< from when a unit was asked for until it was whole
  std::vector<double> compute;  ///< from then until the next unit was asked for
};

/// Times passes in which every unit is gathered on demand, and keeps the least of each number:
/// whatever else the machine does makes them larger.
class PassClock {
 public:
  void begin() { now_ = {}; }
  /// The next unit is asked for.
  void asks();
  /// It is whole, and runs.
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

/// The least of each time over all ranks, the same on all of them: the rank that comes last to a
/// gather waits for no other, so its time is that of the gather alone. `all_gather` returns the
/// numbers of all ranks, rank after rank, for those of this one (dist::all_gather_scalars()).
std::vector<UnitTimes> least_over_ranks(
    std::vector<UnitTimes> passes,
    const std::function<std::vector<double>(std::vector<double>)>& all_gather);

/// How far ahead to gather.
struct LookaheadChoice {
  std::int64_t units = 0;
  std::string why;  ///< for people: what it hides, or what limits it
};

/// The smallest lookahead that hides every gather of every pass, units of different sizes included
/// (train::lookahead() has the formula), unless something limits it, as `why` then says:
///
///   - bandwidth: gathers together take longer than computing; then the smallest lookahead that is
///     as good as any (train::exposed_seconds());
///   - the number of units: no gather as long fits into the pass; then the same;
///   - memory: more than `room` units would have to be whole ahead of time; then `room`.
///
/// A pure function: all ranks that call it with the same times choose the same.
LookaheadChoice choose_lookahead(const std::vector<UnitTimes>& passes, std::int64_t room);

}  // namespace zero

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

/// Seconds that gathers leave uncovered when units are gathered ahead of their use.
namespace zero::train {

double sum(std::span<const double> values);

/// Lookahead k: while unit i computes, the gathers of units up to i + k are in flight.
///
/// k* = ceil(T_gather / T_compute) for equal units. 0 where nothing has to be gathered.
std::int64_t lookahead(double gather_seconds, double compute_seconds);

/// For unequal units: the smallest k with T_compute(i) + ... + T_compute(i+k-1) >= T_gather(i+k)
/// for every i. For k = L, the number of units, there is no such i; L is the answer if all units'
/// computing together covers the longest gather, as in the formula for equal units. nullopt if no k
/// up to L is enough: T_gather > L x T_compute. Both spans have one entry for each unit.
std::optional<std::int64_t> lookahead(std::span<const double> gather_seconds,
                                      std::span<const double> compute_seconds);

/// One pass over the units, in order: each is gathered, computes, and then has something to send.
struct Pass {
  std::vector<double> gather;   ///< seconds on the wire before a unit can compute
  std::vector<double> compute;  ///< seconds
  std::vector<double> reduce;   ///< seconds on the wire after it has computed
};

/// Seconds that the pass takes beyond its computing. The gather of unit i+k is requested when unit
/// i starts, and the link carries one transfer at a time, in the order of requests. k* above
/// assumes that every gather has the link to itself; if all gathers together take longer than
/// computing, no lookahead hides the difference, and this function shows it.
double exposed_seconds(const Pass& pass, std::int64_t lookahead);

}  // namespace zero::train

#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Seconds that gathers leave uncovered when units are gathered ahead of their use.
namespace zero::plan {

double sum(std::span<const double> values);

/// Lookahead k: while unit i computes, the gathers of units up to i + k are in flight.
///
/// The smallest k whose pass waits no longer than with any other (exposed_seconds()): to ask
/// earlier never delays a gather. T_compute(i) + ... + T_compute(i+k-1) >= T_gather(i+k) for every
/// i is necessary to hide every gather, and not enough: a gather also waits for those before it on
/// the link. (The published rule for equal units, k* = ceil(T_gather / T_compute), gives every
/// gather a link of its own.) Both spans have one entry for each unit. Throws Error if they differ
/// in length or are empty.
std::int64_t lookahead(std::span<const double> gather_seconds,
                       std::span<const double> compute_seconds);

/// One pass over the units, in order: each is gathered, computes, and then has something to send.
struct Pass {
  std::vector<double> gather;   ///< seconds on the wire before a unit can compute
  std::vector<double> compute;  ///< seconds
  std::vector<double> reduce;   ///< seconds on the wire after it has computed
};

/// Seconds that the pass takes beyond its computing. The gather of unit i+k is requested when unit
/// i starts, and the link carries one transfer at a time, in the order of requests.
double exposed_seconds(const Pass& pass, std::int64_t lookahead);

}  // namespace zero::plan

#include "lookahead.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <zero/train/exposed_time.hpp>

namespace zero {

using train::sum;

double PassClock::lap() {
  const Clock::time_point before = std::exchange(since_, Clock::now());
  return std::chrono::duration<double>(since_ - before).count();
}

void PassClock::close_unit() {
  const double seconds = lap();
  if (now_.compute.size() < now_.gather.size()) now_.compute.push_back(seconds);
}

void PassClock::asks() { close_unit(); }

void PassClock::runs() { now_.gather.push_back(lap()); }

void PassClock::end() {
  close_unit();
  // A different number of units means a different graph: the old times do not apply.
  if (least_.gather.size() != now_.gather.size()) least_ = now_;
  for (std::size_t i = 0; i < now_.gather.size(); ++i) {
    least_.gather[i] = std::min(least_.gather[i], now_.gather[i]);
    least_.compute[i] = std::min(least_.compute[i], now_.compute[i]);
  }
}

std::vector<UnitTimes> least_over_ranks(
    std::vector<UnitTimes> passes,
    const std::function<std::vector<double>(std::vector<double>)>& all_gather) {
  std::vector<double*> least;
  for (UnitTimes& pass : passes) {
    for (double& seconds : pass.gather) least.push_back(&seconds);
    for (double& seconds : pass.compute) least.push_back(&seconds);
  }
  std::vector<double> mine;
  for (const double* seconds : least) mine.push_back(*seconds);
  const std::vector<double> all = all_gather(mine);
  for (std::size_t i = 0; i < all.size(); ++i) {
    *least[i % least.size()] = std::min(*least[i % least.size()], all[i]);
  }
  return passes;
}

namespace {

std::string in_ms(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

// Measured times are never exact: a wait longer by this part of the computing counts as equal.
constexpr double kAsGood = 0.01;

LookaheadChoice choose(const UnitTimes& times, std::int64_t room) {
  const double gathers = sum(times.gather);
  const double computes = sum(times.compute);
  const double slack = kAsGood * computes;
  const auto units = static_cast<std::int64_t>(times.gather.size());
  const std::int64_t k = train::lookahead(times.gather, times.compute, units, slack);
  if (k > room) {
    return {train::lookahead(times.gather, times.compute, room, slack),
            fmt::format("memory is the limit: {} units ahead would hide more, there is room for {}",
                        k, room)};
  }
  const train::Pass pass{times.gather, times.compute, std::vector<double>(times.gather.size())};
  // Nothing computes before the first gather.
  const double left = train::exposed_seconds(pass, k) - times.gather.front();
  if (gathers > computes) {
    return {k, fmt::format("bandwidth is the limit: gathers take {} in a pass that computes for {}",
                           in_ms(gathers), in_ms(computes))};
  }
  if (left > slack) {
    return {k, fmt::format("the order of the units is the limit: gathers that come before enough "
                           "has computed wait for {}",
                           in_ms(left))};
  }
  if (k == 0) {
    return {k, fmt::format("gathers on demand take {} in a pass that computes for {}",
                           in_ms(gathers), in_ms(computes))};
  }
  return {k,
          fmt::format("gathers of up to {} are hidden behind units that compute for {} on average",
                      in_ms(*std::ranges::max_element(times.gather)),
                      in_ms(computes / static_cast<double>(units)))};
}

}  // namespace

LookaheadChoice choose_lookahead(const std::vector<UnitTimes>& passes, std::int64_t room) {
  LookaheadChoice furthest{0, "there is nothing to gather"};
  for (const UnitTimes& times : passes) {
    if (times.gather.empty()) continue;
    LookaheadChoice choice = choose(times, room);
    if (choice.units >= furthest.units) furthest = std::move(choice);
  }
  return furthest;
}

}  // namespace zero

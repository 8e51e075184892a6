#include "exposed_time.hpp"

#include <algorithm>
#include <numeric>
#include <ranges>

#include <zero/base/error.hpp>

namespace zero::plan {

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::int64_t lookahead(std::span<const double> gather_seconds,
                       std::span<const double> compute_seconds) {
  if (gather_seconds.size() != compute_seconds.size() || gather_seconds.empty()) {
    throw Error("a lookahead needs one gather and one compute time for every unit");
  }
  const Pass pass{{gather_seconds.begin(), gather_seconds.end()},
                  {compute_seconds.begin(), compute_seconds.end()},
                  std::vector<double>(gather_seconds.size(), 0.0)};
  // With as many ahead as there are units, all are requested at once.
  const std::int64_t most = std::ssize(gather_seconds);
  constexpr double kRounding = 1e-9;  // sums of the same times in another order
  const double allowed =
      exposed_seconds(pass, most) + kRounding * (sum(gather_seconds) + sum(compute_seconds));
  const auto lookaheads = std::views::iota(std::int64_t{0}, most);
  return *std::ranges::partition_point(
      lookaheads, [&](std::int64_t k) { return exposed_seconds(pass, k) > allowed; });
}

double exposed_seconds(const Pass& pass, std::int64_t lookahead) {
  const std::size_t units = pass.compute.size();
  double link_is_free = 0;  // it carries one transfer at a time
  const auto carry = [&](double earliest, double seconds) {
    if (seconds != 0) earliest = link_is_free = std::max(link_is_free, earliest) + seconds;
    return earliest;
  };
  std::vector<double> ready(units, 0);
  std::size_t asked = 0;
  double now = 0;
  for (std::size_t i = 0; i < units; ++i) {
    const auto ask_up_to = [&](std::size_t last) {
      for (; asked <= last && asked < units; ++asked) {
        ready[asked] = carry(now, pass.gather[asked]);
      }
    };
    ask_up_to(i);
    now = std::max(now, ready[i]);
    // Chapter 05 asks for these before it waits for unit i. The link is busy until then anyway.
    ask_up_to(i + static_cast<std::size_t>(lookahead));
    now += pass.compute[i];
    carry(now, pass.reduce[i]);
  }
  return std::max(now, link_is_free) - sum(pass.compute);
}

}  // namespace zero::plan

#include <algorithm>
#include <cmath>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/train/exposed_time.hpp>

namespace zero::train {
namespace {

// How many units must compute before unit `unit` to cover its gather. If all of them together do
// not, one more than there are: for so large a lookahead there is no condition on `unit`.
std::size_t units_to_cover(double gather, std::span<const double> compute, std::size_t unit) {
  double covered = 0;
  for (std::size_t k = 1; k <= unit; ++k) {
    covered += compute[unit - k];
    if (covered >= gather) return k;
  }
  return unit + 1;
}

}  // namespace

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::int64_t lookahead(double gather_seconds, double compute_seconds) {
  if (gather_seconds == 0) return 0;
  if (!(compute_seconds > 0)) throw Error("a lookahead needs units that take time to compute");
  return static_cast<std::int64_t>(std::ceil(gather_seconds / compute_seconds));
}

std::optional<std::int64_t> lookahead(std::span<const double> gather_seconds,
                                      std::span<const double> compute_seconds) {
  if (gather_seconds.size() != compute_seconds.size() || gather_seconds.empty()) {
    throw Error("a lookahead needs one gather and one compute time for every unit");
  }
  const double longest = *std::max_element(gather_seconds.begin(), gather_seconds.end());
  if (longest == 0) return 0;
  const std::size_t units = gather_seconds.size();
  std::size_t needed = 1;
  for (std::size_t i = 1; i < units; ++i) {
    needed = std::max(needed, units_to_cover(gather_seconds[i], compute_seconds, i));
  }
  if (needed < units) return static_cast<std::int64_t>(needed);
  if (sum(compute_seconds) >= longest) return static_cast<std::int64_t>(units);
  return std::nullopt;
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
    ask_up_to(i + static_cast<std::size_t>(lookahead));
    now += pass.compute[i];
    carry(now, pass.reduce[i]);
  }
  return std::max(now, link_is_free) - sum(pass.compute);
}

}  // namespace zero::train

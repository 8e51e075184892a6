#include <algorithm>
#include <cmath>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/train/exposed_time.hpp>

namespace zero::train {
namespace {

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

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

// The link carries one transfer at a time.
class Link {
 public:
  // A transfer that may start at `earliest` and takes `seconds`; returns when it is done.
  double carry(double earliest, double seconds) {
    if (seconds == 0) return earliest;
    free_ = std::max(free_, earliest) + seconds;
    return free_;
  }
  double free() const { return free_; }

 private:
  double free_ = 0;
};

}  // namespace

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
  Link link;
  std::vector<double> ready(units, 0);
  std::size_t asked = 0;
  double now = 0;
  for (std::size_t i = 0; i < units; ++i) {
    const auto ask_up_to = [&](std::size_t last) {
      for (; asked <= last && asked < units; ++asked) {
        ready[asked] = link.carry(now, pass.gather[asked]);
      }
    };
    ask_up_to(i);
    now = std::max(now, ready[i]);
    ask_up_to(i + static_cast<std::size_t>(lookahead));
    now += pass.compute[i];
    link.carry(now, pass.reduce[i]);
  }
  return std::max(now, link.free()) - sum(pass.compute);
}

}  // namespace zero::train

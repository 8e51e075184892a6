#include "zero/plan/timing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <zero/error.hpp>

namespace zero::plan {
namespace {

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// How many units must compute before unit `unit` for its gather to be covered. Where all of them
// together do not cover it, one more: with so large a lookahead nothing is asked of them.
std::size_t units_to_cover(double gather, std::span<const double> compute, std::size_t unit) {
  double covered = 0;
  for (std::size_t k = 1; k <= unit; ++k) {
    covered += compute[unit - k];
    if (covered >= gather) return k;
  }
  return unit + 1;
}

// The link does one thing at a time.
class Link {
 public:
  // Something that may start at `earliest` and takes `seconds`; gives when it is done.
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

double compute_seconds(std::int64_t parameters, std::int64_t tokens, const Machine& machine,
                       bool recomputes) {
  const double operations =
      kForwardOperations + kBackwardOperations + (recomputes ? kForwardOperations : 0);
  return operations * static_cast<double>(parameters) * static_cast<double>(tokens) / machine.flops;
}

std::int64_t collectives(Scheme scheme, std::int64_t units) {
  const bool three = scheme == Scheme::kZero3 || scheme == Scheme::kZero1Naive;
  return units * (three ? 3 : 2);
}

double communication_seconds(double bytes, std::int64_t collectives, const Machine& machine) {
  return bytes / machine.bandwidth + static_cast<double>(collectives) * machine.latency;
}

std::optional<std::int64_t> break_even_batch(double communication_seconds, std::int64_t parameters,
                                             std::int64_t sequence, double share,
                                             const Machine& machine) {
  const double a_sample = compute_seconds(parameters, sequence, machine);
  const double batch = communication_seconds / (share * a_sample);
  if (!(batch < 1e9)) return std::nullopt;
  // "Less than": a batch that meets the share exactly is one short.
  return static_cast<std::int64_t>(std::floor(batch)) + 1;
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

double unit_gather_seconds(std::int64_t elements, const Policy& policy, std::int64_t world_size,
                           const Machine& machine) {
  if (world_size == 1 || elements == 0) return 0;
  const double bytes = static_cast<double>(elements * policy.parameter);
  return communication_seconds(bytes * redundant_share(world_size), 1, machine);
}

double unit_forward_seconds(std::int64_t elements, std::int64_t tokens, const Machine& machine) {
  return compute_seconds(elements, tokens, machine) * kForwardOperations /
         (kForwardOperations + kBackwardOperations);
}

StepTime step_time(const Model& model, const Policy& policy, Scheme scheme, std::int64_t world_size,
                   std::int64_t tokens, std::int64_t lookahead, bool recomputes,
                   const Machine& machine) {
  std::vector<std::int64_t> order;
  if (model.root > 0) order.push_back(model.root);
  order.insert(order.end(), model.units.begin(), model.units.end());

  const bool gathers = scheme == Scheme::kZero3 || scheme == Scheme::kZero3Kept;
  const bool all_reduces = scheme == Scheme::kDdp || scheme == Scheme::kZero1Naive;
  Pass forward;
  Pass backward;
  double after = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool is_root = model.root > 0 && i == 0;
    const double gather = unit_gather_seconds(order[i], policy, world_size, machine);
    Policy gradient = policy;
    gradient.parameter = policy.gradient;
    const double half = unit_gather_seconds(order[i], gradient, world_size, machine);
    const double compute = unit_forward_seconds(order[i], tokens, machine);
    forward.gather.push_back(gathers ? gather : 0);
    forward.compute.push_back(compute);
    forward.reduce.push_back(0);
    backward.gather.push_back(scheme == Scheme::kZero3 && !is_root ? gather : 0);
    backward.compute.push_back(2 * compute + (recomputes ? compute : 0));
    backward.reduce.push_back(all_reduces ? 2 * half : half);
    if (!gathers && scheme != Scheme::kDdp) after += gather;
  }
  for (auto* values : {&backward.gather, &backward.compute, &backward.reduce}) {
    std::reverse(values->begin(), values->end());
  }
  StepTime time;
  time.compute = sum(forward.compute) + sum(backward.compute);
  time.communication = sum(forward.gather) + sum(backward.gather) + sum(backward.reduce) + after;
  time.exposed = exposed_seconds(forward, lookahead) + exposed_seconds(backward, lookahead) + after;
  return time;
}

}  // namespace zero::plan

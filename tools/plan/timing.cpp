#include "timing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

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

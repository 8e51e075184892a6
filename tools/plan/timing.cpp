#include <algorithm>
#include <cmath>

#include "exposed_time.hpp"
#include "planner.hpp"

namespace zero::plan {

double compute_seconds(std::int64_t parameters, std::int64_t tokens, const Machine& machine) {
  return (kForwardOperations + kBackwardOperations) * static_cast<double>(parameters) *
         static_cast<double>(tokens) / machine.flops;
}

double forward_seconds(std::int64_t parameters, std::int64_t tokens, const Machine& machine) {
  return compute_seconds(parameters, tokens, machine) * kForwardOperations /
         (kForwardOperations + kBackwardOperations);
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

double transfer_seconds(std::int64_t bytes, std::int64_t world_size, const Machine& machine) {
  if (world_size == 1 || bytes == 0) return 0;
  return communication_seconds(static_cast<double>(bytes) * redundant_share(world_size), 1,
                               machine);
}

StepTime step_time(const Request& r, Stage stage, std::int64_t lookahead) {
  const Model& model = r.model;
  const bool gathers = stage != Stage::kDdp, again = stage == Stage::kZero3;
  std::vector<std::int64_t> order = model.units;
  if (model.root > 0) order.insert(order.begin(), model.root);
  Pass forward, backward;
  for (const std::int64_t unit : order) {
    const double gather = transfer_seconds(unit * r.policy.parameter, r.world_size, r.machine);
    const double compute = forward_seconds(unit, r.tokens(), r.machine);
    forward.gather.push_back(gathers ? gather : 0);
    forward.compute.push_back(compute);
    forward.reduce.push_back(0);
    backward.gather.push_back(again ? gather : 0);
    backward.compute.push_back(r.recompute ? 3 * compute : 2 * compute);
    // An all-reduce is two reductions.
    backward.reduce.push_back((gathers ? 1 : 2) *
                              transfer_seconds(unit * r.policy.gradient, r.world_size, r.machine));
  }
  if (model.root > 0) backward.gather.front() = 0;
  for (auto* values : {&backward.gather, &backward.compute, &backward.reduce}) {
    std::ranges::reverse(*values);
  }
  StepTime time;
  time.compute = sum(forward.compute) + sum(backward.compute);
  time.communication = sum(forward.gather) + sum(backward.gather) + sum(backward.reduce);
  time.exposed = exposed_seconds(forward, again ? lookahead : std::ssize(order)) +
                 exposed_seconds(backward, lookahead);
  return time;
}

}  // namespace zero::plan

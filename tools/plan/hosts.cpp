#include "hosts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

// A model of P elements on R hosts of S ranks.
struct Hosts {
  const Request& request;
  const double per_host = static_cast<double>(*request.hosts.ranks_per_host);
  const double ranks = static_cast<double>(request.world_size);
  const double elements = static_cast<double>(request.model.parameters);
  const double again = elements - static_cast<double>(request.model.root);  // gathered in backward
  const double gradients = elements * static_cast<double>(request.policy.gradient);  // bytes

  // In 8 bits a byte each, with 4 bytes for the scale of each block.
  double parameters(double count, bool quantizes) const {
    return count * (quantizes ? 1 + 4 / static_cast<double>(request.hosts.block)
                              : static_cast<double>(request.policy.parameter));
  }

  // `bytes` gathered from all ranks, or reduced and scattered over them.
  HostPhase over_all(double bytes) const {
    const double sent = bytes * (ranks - 1) / ranks;
    return {sent - sent / per_host, sent / per_host, 0};
  }
  HostPhase inside_host(double bytes) const { return {bytes * (per_host - 1) / per_host, 0, 0}; }

  // A rank quantizes its shard and dequantizes all. A secondary shard is packed already.
  HostPhase gather(double count, bool quantizes, bool secondary = false) const {
    const double bytes = parameters(count, quantizes), values = parameters(count, false);
    HostPhase phase = secondary ? inside_host(bytes) : over_all(bytes);
    if (quantizes) phase.quantized = secondary ? values : values / ranks + values;
    return phase;
  }
  // qgZ, half a byte each: a rank quantizes all gradients and adds up as many values in the first
  // hop, in the second one those of its place.
  std::vector<HostPhase> reduce(bool quantizes) const {
    if (!quantizes) return {over_all(gradients)};
    const double packed = elements * (0.5 + 4 / static_cast<double>(request.hosts.gradient_block));
    HostPhase first = inside_host(packed);
    first.quantized = 2 * gradients;
    return {first, {0, packed * (ranks / per_host - 1) / ranks, 2 * gradients / per_host}};
  }

  States states(std::int64_t world_size) const {
    return model_states(request.model.parameters, request.policy, Stage::kZero3, world_size);
  }
  HostPlan plan(const char* name, bool secondary, bool weights, bool of_gradients) const {
    HostPlan plan{name, states(request.world_size), reduce(of_gradients)};
    if (secondary) {
      plan.states.parameters += static_cast<std::int64_t>(parameters(elements, weights) / per_host);
    }
    plan.phases.push_back(gather(elements, weights));
    plan.phases.push_back(gather(again, weights, secondary));
    return plan;
  }
  HostPlan hsdp() const {
    // A bucket's all-reduce between hosts runs while the next bucket is reduced inside.
    HostPhase reduction = inside_host(gradients);
    reduction.between = 2 * gradients / per_host * (ranks / per_host - 1) / (ranks / per_host);
    return {"HSDP",
            states(*request.hosts.ranks_per_host),
            {inside_host(parameters(elements, false)), inside_host(parameters(again, false)),
             reduction}};
  }
  std::vector<HostPlan> all() const {
    return {plan("ZeRO-3", false, false, false), hsdp(),
            plan("hpZ", true, false, false),     plan("qwZ", false, true, false),
            plan("qgZ", false, false, true),     plan("ZeRO++", true, true, true)};
  }
};

// Seconds are sums of the longer of two lines, so the gain changes its sign at few ratios. Found
// from the largest ratio down, in small steps and then by halving.
std::optional<double> pays_from(const HostPlan& plan, const HostPlan& zero3, const Request& r) {
  constexpr double kLargest = 1e6, kSmallest = 1e-3, kStep = 1.01;
  const auto pays = [&](double ratio) {
    const double bandwidth = r.machine.bandwidth / ratio;
    return phases_seconds(plan.phases, r, bandwidth) < phases_seconds(zero3.phases, r, bandwidth);
  };
  if (!pays(kLargest)) return std::nullopt;
  double high = kLargest;
  while (high > kSmallest && pays(high / kStep)) high /= kStep;
  if (high <= kSmallest) return 0;
  double low = high / kStep;
  while (high - low > 1e-9 * high) {
    const double middle = (low + high) / 2;
    (pays(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

HostPhase HostPlan::sum() const {
  HostPhase all;
  for (const auto& [inside, between, quantized] : phases) {
    all = {all.inside + inside, all.between + between, all.quantized + quantized};
  }
  return all;
}

double phases_seconds(const std::vector<HostPhase>& phases, const Request& request,
                      double bandwidth) {
  double seconds = 0;
  for (const auto& [inside, between, quantized] : phases) {
    seconds += std::max(inside / request.machine.bandwidth, between / bandwidth) +
               quantized / request.hosts.quantize_bandwidth;
  }
  return seconds;
}

std::vector<HostPlan> plan_hosts(const Request& r) {
  const std::int64_t per_host = *r.hosts.ranks_per_host;
  if (r.world_size % per_host != 0 || r.world_size == per_host) {
    throw Error(fmt::format("--ranks-per-host {}: --world-size {} is not two or more such hosts",
                            per_host, r.world_size));
  }
  std::vector<HostPlan> plans = Hosts{r}.all();
  for (HostPlan& plan : plans) {
    plan.leaves = plan.sum().between * static_cast<double>(per_host);
    plan.seconds = phases_seconds(plan.phases, r, r.hosts.bandwidth);
    if (&plan != &plans.front()) plan.pays_from = pays_from(plan, plans.front(), r);
  }
  return plans;
}

}  // namespace zero::plan

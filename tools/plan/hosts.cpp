#include "hosts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

// What all ways are made of: a model of P elements, on R hosts of S ranks.
struct Hosts {
  const Request& request;
  const Sending sending;
  const double per_host = static_cast<double>(*request.hosts.ranks_per_host);
  const double ranks = static_cast<double>(request.world_size);
  const double hosts = ranks / per_host;
  const double elements = static_cast<double>(request.model.parameters);
  const double again = elements - static_cast<double>(request.model.root);  // gathered in backward

  double parameter_bytes(double count) const {
    return count * static_cast<double>(request.policy.parameter);
  }
  double gradient_bytes() const { return elements * static_cast<double>(request.policy.gradient); }
  // A byte each, with 4 bytes for the scale of each block.
  double packed_parameters(double count) const {
    return count * (1 + 4 / static_cast<double>(request.hosts.block));
  }
  // Half a byte each.
  double packed_gradients() const {
    return elements * (0.5 + 4 / static_cast<double>(request.hosts.gradient_block));
  }

  // `bytes` gathered from all ranks, or reduced and scattered over them.
  HostPhase over_all(double bytes) const {
    const double sent = bytes * (ranks - 1) / ranks;
    const double between =
        sending == Sending::kRing ? sent / per_host : bytes * (ranks - per_host) / ranks;
    return {sent - between, between, 0};
  }
  HostPhase inside_host(double bytes) const { return {bytes * (per_host - 1) / per_host, 0, 0}; }

  HostPhase gather(double count, bool quantizes) const;
  HostPhase gather_again(bool quantizes, bool secondary) const;
  std::vector<HostPhase> reduce(bool quantizes) const;
  std::vector<HostPhase> hsdp() const;
  std::int64_t secondary_shard(bool quantizes) const;
};

HostPhase Hosts::gather(double count, bool quantizes) const {
  if (!quantizes) return over_all(parameter_bytes(count));
  HostPhase phase = over_all(packed_parameters(count));
  phase.quantized = parameter_bytes(count) / ranks + parameter_bytes(count);  // its shard; all
  return phase;
}

HostPhase Hosts::gather_again(bool quantizes, bool secondary) const {
  if (!secondary) return gather(again, quantizes);
  if (!quantizes) return inside_host(parameter_bytes(again));
  HostPhase phase = inside_host(packed_parameters(again));
  phase.quantized = parameter_bytes(again);  // the secondary shard is packed already
  return phase;
}

// qgZ: a rank quantises all gradients and adds up as many values in the first hop, in the second
// one those of its place.
std::vector<HostPhase> Hosts::reduce(bool quantizes) const {
  const double bytes = gradient_bytes();
  if (!quantizes) return {over_all(bytes)};
  const double packed = packed_gradients();
  HostPhase first = inside_host(packed);
  first.quantized = 2 * bytes;
  return {first, {0, packed * (hosts - 1) / ranks, 2 * bytes / per_host}};
}

std::vector<HostPhase> Hosts::hsdp() const {
  return {inside_host(parameter_bytes(elements)),
          inside_host(parameter_bytes(again)),
          inside_host(gradient_bytes()),
          {0, 2 * gradient_bytes() / per_host * (hosts - 1) / hosts, 0}};
}

std::int64_t Hosts::secondary_shard(bool quantizes) const {
  const double bytes = quantizes ? packed_parameters(elements) : parameter_bytes(elements);
  return static_cast<std::int64_t>(bytes / per_host);
}

struct Parts {
  const char* name;
  bool secondary = false, parameters = false, gradients = false;
};

HostPlan plan_of(const Hosts& hosts, const Parts& parts) {
  const Request& r = hosts.request;
  HostPlan plan{.name = parts.name,
                .states = model_states(r.model.parameters, r.policy, Stage::kZero3, r.world_size)};
  if (parts.secondary) plan.states.parameters += hosts.secondary_shard(parts.parameters);
  plan.phases = hosts.reduce(parts.gradients);
  plan.phases.push_back(hosts.gather(hosts.elements, parts.parameters));
  plan.phases.push_back(hosts.gather_again(parts.parameters, parts.secondary));
  return plan;
}

HostPlan plan_of_hsdp(const Hosts& hosts) {
  const Request& r = hosts.request;
  return {
      .name = "HSDP",
      .states = model_states(r.model.parameters, r.policy, Stage::kZero3, *r.hosts.ranks_per_host),
      .phases = hosts.hsdp()};
}

std::vector<HostPlan> all_ways(const Hosts& hosts) {
  std::vector<HostPlan> plans = {plan_of(hosts, {"ZeRO-3"}), plan_of_hsdp(hosts)};
  for (const Parts& parts : {Parts{"hpZ", true},
                             {"qwZ", false, true},
                             {"qgZ", false, false, true},
                             {"ZeRO++", true, true, true}}) {
    plans.push_back(plan_of(hosts, parts));
  }
  return plans;
}

double seconds(const HostPlan& plan, const Request& r, double ratio) {
  return phases_seconds(plan.phases, r.machine.bandwidth, r.machine.bandwidth / ratio,
                        r.hosts.quantize_bandwidth);
}

// Seconds are sums of the longer of two lines, so what is gained changes its sign at few ratios.
// Found from the largest ratio down, in small steps and then by halving.
std::optional<double> pays_from(const HostPlan& plan, const HostPlan& zero3, const Request& r) {
  constexpr double kLargest = 1e6, kSmallest = 1e-3, kStep = 1.01;
  const auto pays = [&](double ratio) {
    return seconds(plan, r, ratio) < seconds(zero3, r, ratio);
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

void check_hosts(const Request& r) {
  const std::int64_t per_host = *r.hosts.ranks_per_host;
  if (r.world_size % per_host != 0 || r.world_size == per_host) {
    throw Error(fmt::format("--ranks-per-host {}: --world-size {} is not two or more such hosts",
                            per_host, r.world_size));
  }
  if (r.mesh != MeshRequest{} || r.stage || r.memory) {
    throw Error(
        "--ranks-per-host compares what ways of ZeRO-3 send between hosts of data ranks: leave "
        "out --stage, --memory and the options of a mesh");
  }
}

}  // namespace

double HostPlan::inside() const {
  double bytes = 0;
  for (const HostPhase& phase : phases) bytes += phase.inside;
  return bytes;
}

double HostPlan::between() const {
  double bytes = 0;
  for (const HostPhase& phase : phases) bytes += phase.between;
  return bytes;
}

bool HostPlan::rounds() const {
  return std::ranges::any_of(phases, [](const HostPhase& phase) { return phase.quantized > 0; });
}

double phases_seconds(const std::vector<HostPhase>& phases, double inside_bandwidth,
                      double between_bandwidth, double quantize_bandwidth) {
  double seconds = 0;
  for (const HostPhase& phase : phases) {
    seconds += std::max(phase.inside / inside_bandwidth, phase.between / between_bandwidth) +
               phase.quantized / quantize_bandwidth;
  }
  return seconds;
}

std::vector<HostPlan> plan_hosts(const Request& request) {
  check_hosts(request);
  const auto per_host = static_cast<double>(*request.hosts.ranks_per_host);
  const std::vector<HostPlan> by_ring = all_ways({request, Sending::kRing}),
                              directly = all_ways({request, Sending::kDirect});
  std::vector<HostPlan> plans = request.hosts.sending == Sending::kRing ? by_ring : directly;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    HostPlan& plan = plans[i];
    plan.leaves_by_ring = by_ring[i].between() * per_host;
    plan.leaves_directly = directly[i].between() * per_host;
    plan.seconds = seconds(plan, request, request.machine.bandwidth / request.hosts.bandwidth);
    if (i > 0) plan.pays_from = pays_from(plan, plans.front(), request);
  }
  return plans;
}

}  // namespace zero::plan

#pragma once

#include <optional>
#include <string>
#include <vector>

#include <07_zero_plus_plus/block_layout.hpp>

#include "stages.hpp"

/// Ranks on several hosts whose links are slower than those inside a host: what HSDP and each part
/// of ZeRO++ hold and send beside ZeRO-3, and from which ratio of the two bandwidths on each pays.
///
/// An all-gather or a reduce-scatter of V bytes over N = R S ranks travels in a ring whose ranks
/// are in the order of hosts, to the next rank only. Then V (N-1)/N leave a host, from its last
/// rank. With S rings, each of which leaves the host from another rank (NCCL makes one for each
/// network card), every rank sends 1/S of that to other hosts. An all-to-all has a message for each
/// pair of ranks. (This library sends from each rank to each: 06_hsdp/README.md has its bytes
/// beside these.)
///
/// Sources: ZeRO++ (Wang et al., arXiv:2306.10209), section 3, for hpZ, qwZ and qgZ; MiCS
/// (arXiv:2205.00119) for HSDP. 06_hsdp/README.md and 07_zero_plus_plus/README.md derive the
/// bytes.
namespace zero::plan {

/// What is asked about hosts.
struct HostRequest {
  std::optional<std::int64_t> ranks_per_host;  ///< S: consecutive ranks; R = N/S hosts
  double bandwidth = 10e9;           ///< bytes a second that a rank sends to other hosts with
  double quantize_bandwidth = 1e12;  ///< bytes of values that a rank quantizes in a second
  std::int64_t block = quantization::Format{}.block;  ///< parameters that share a scale
  std::int64_t gradient_block = 256;                  ///< elements of a gradient that share one
};

/// A collective, or one inside hosts and one between hosts that run at the same time. Bytes are the
/// mean of a host's ranks.
struct HostPhase {
  double inside = 0;     ///< bytes that a rank sends to ranks of its host
  double between = 0;    ///< bytes that a rank sends to other hosts
  double quantized = 0;  ///< bytes of values that it quantizes or dequantizes
};

/// One way to train on R hosts of S ranks.
struct HostPlan {
  std::string name;  ///< "ZeRO-3", "HSDP", "hpZ", "qwZ", "qgZ", "ZeRO++"
  States states;     ///< of the fullest rank; secondary shards are among the parameters
  std::vector<HostPhase> phases;  ///< the collectives of a step
  double leaves = 0;              ///< bytes that leave a host in a step with one micro-batch
  double seconds = 0;             ///< communication and quantizing, nothing hidden
  /// The smallest W_inside/W_between from which on this takes less time than ZeRO-3, where
  /// W_inside is Machine::bandwidth: 0 for any ratio, nothing if it never does.
  std::optional<double> pays_from = {};

  /// Sums of `phases`: what a rank sends in a step with one micro-batch, and the values that it
  /// quantizes.
  HostPhase sum() const;
};

struct Request;

/// Seconds of phases that follow each other, if a rank sends to other hosts with `bandwidth`. The
/// links inside a host and between hosts work at the same time, so a phase takes the longer of
/// inside/W_inside and between/W_between, and quantized/W_quantize. Latencies are left out.
double phases_seconds(const std::vector<HostPhase>& phases, const Request& request,
                      double bandwidth);

/// Compares ZeRO-3 with methods that send less between hosts, for a request that make_plan() takes.
/// Part of make_plan(). Throws zero::Error that names option and numbers if hosts of that size do
/// not fill the ranks, or if there is only one.
std::vector<HostPlan> plan_hosts(const Request& request);

}  // namespace zero::plan

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <zero/quantization/block_layout.hpp>

#include "timing.hpp"

/// Ranks on several hosts whose links are slower than those inside a host: what HSDP and each part
/// of ZeRO++ hold and send beside ZeRO-3, and from which ratio of the two bandwidths on each pays.
///
/// Sources: ZeRO++ (Wang et al., arXiv:2306.10209), section 3, for hpZ, qwZ and qgZ; MiCS
/// (arXiv:2205.00119) for HSDP. 07_zero_plus_plus/README.md derives the bytes.
namespace zero::plan {

/// What is asked about hosts.
struct HostRequest {
  std::optional<std::int64_t> ranks_per_host;  ///< S: consecutive ranks; R = N/S hosts
  double bandwidth = 10e9;           ///< bytes a second that a rank sends to other hosts with
  double quantize_bandwidth = 1e12;  ///< bytes of values that a rank quantises in a second
  std::int64_t block = quantization::Format{}.block;  ///< parameters that share a scale
  std::int64_t gradient_block = 256;                  ///< elements of a gradient that share one
};

/// A collective, or several that follow each other.
struct HostPhase {
  double inside = 0;     ///< bytes that a rank sends to ranks of its host
  double between = 0;    ///< bytes that a rank sends to other hosts
  double quantized = 0;  ///< bytes of values that it quantises or dequantises
};

/// One way to train on R hosts of S ranks.
struct HostPlan {
  std::string name = {};  ///< "ZeRO-3", "HSDP", "hpZ", "qwZ", "qgZ", "ZeRO++"
  States states = {};     ///< of the fullest rank; secondary shards are among the parameters
  std::vector<HostPhase> phases =
      {};              ///< gathers in forward and in backward, reduction of gradients
  double seconds = 0;  ///< communication and quantising, nothing hidden
  /// The smallest W_inside/W_between from which on this takes less time than ZeRO-3, where
  /// W_inside is Machine::bandwidth: 0 for any ratio, nothing where it never does.
  std::optional<double> pays_from = {};

  /// Bytes that a rank sends in a step with one micro-batch.
  double inside() const;
  double between() const;
};

/// Seconds of phases that follow each other. The links inside a host and between hosts work at the
/// same time, so a phase takes the longer of inside/W_inside and between/W_between, and
/// quantized/W_quantize. Latencies are left out.
double phases_seconds(const std::vector<HostPhase>& phases, double inside_bandwidth,
                      double between_bandwidth, double quantize_bandwidth);

struct Request;

/// ZeRO-3 and what ZeRO-3's slow links can be spared with, for a request that make_plan() takes.
/// Part of make_plan(). Throws zero::Error that names option and numbers if hosts of that size do
/// not fill the ranks, or if there is only one.
std::vector<HostPlan> plan_hosts(const Request& request);

}  // namespace zero::plan

#pragma once

#include <cstdint>
#include <optional>

#include "model.hpp"
#include "stages.hpp"

/// Seconds: compute, communication, and how much of the second can hide behind the first.
namespace zero::plan {

/// What a rank computes and sends with.
struct Machine {
  double bandwidth = 100e9;  ///< bytes a second that a rank sends and, at the same time, receives
  double latency = 10e-6;    ///< seconds that every collective takes besides
  double flops = 150e12;     ///< operations a second that a rank attains, not its data sheet's
};

/// Operations of a step for each parameter and token: 2 in forward and 4 in backward (Kaplan et
/// al., arXiv:2001.08361, section 2.1). The product of queries and keys is not counted.
inline constexpr double kForwardOperations = 2, kBackwardOperations = 4;

/// 6 P tokens / FLOP/s.
double compute_seconds(std::int64_t parameters, std::int64_t tokens, const Machine& machine);
/// The forward of it: 2 P tokens / FLOP/s.
double forward_seconds(std::int64_t parameters, std::int64_t tokens, const Machine& machine);

/// bytes / bandwidth + collectives x latency: the alpha-beta model (Hockney, "The communication
/// challenge for MPP", Parallel Computing 20(3), 1994), one collective after another.
double communication_seconds(double bytes, std::int64_t collectives, const Machine& machine);

/// Seconds to gather, or to reduce and scatter, `bytes` of a unit; 0 with one rank.
double transfer_seconds(std::int64_t bytes, std::int64_t world_size, const Machine& machine);

/// The smallest number of samples a rank with which communication takes less than `share` of
/// compute, nothing hidden: the smallest B with T_communication < share x 6 P B s / FLOP/s. Nothing
/// beyond 10^9 samples. Without latency P cancels, so the answer is nearly the same for every size.
std::optional<std::int64_t> break_even_batch(double communication_seconds, std::int64_t parameters,
                                             std::int64_t sequence, double share,
                                             const Machine& machine);

/// Forward and backward of a model under a stage.
struct StepTime {
  double compute = 0;
  double communication = 0;  ///< all of it, nothing hidden
  double exposed = 0;        ///< the rest of it, with the given lookahead
  double total() const { return compute + exposed; }
};

}  // namespace zero::plan

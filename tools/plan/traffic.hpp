#pragma once

#include <cstdint>

#include "states.hpp"

/// Bytes that a rank sends in one step with one micro-batch, by formula.
///
/// Sources: ZeRO (arXiv:1910.02054), section 7, for 2 V and 3 V; the factor (N-1)/N and the two
/// halves of an all-reduce from Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
/// clusters of workstations" (Journal of Parallel and Distributed Computing 69(2), 2009), section
/// 3. V is the bytes of one copy, N the world size. docs/communication.md derives every line.
namespace zero::plan {

/// What is sent, in which way. The first four are those of the stages.
enum class Scheme {
  kDdp,               ///< all-reduce of gradients
  kZero1,             ///< reduce-scatter gradients, all-gather updated parameters
  kZero2,             ///< as kZero1
  kZero3,             ///< gather for forward, gather for backward, reduce-scatter gradients
  kZero1Naive,        ///< all-reduce gradients, all-gather updated parameters
  kZero2Placeholder,  ///< a reduce-scatter per parameter, padded with zeros for non-owners
  kZero3Kept,         ///< gather once, keep until backward has passed, reduce-scatter gradients
};

/// The usual way of a stage.
inline Scheme scheme_of(Stage stage) { return static_cast<Scheme>(stage); }

/// One copy of what is sent, in bytes. Parameters and gradients may have different dtypes.
struct Copies {
  double gradients = 0;
  double parameters = 0;
};
/// P elements in the dtypes of `policy`.
Copies copies(std::int64_t parameters, const Policy& policy);

/// Bytes sent by a rank.
struct Traffic {
  double gradients_reduced = 0;   ///< in reduce-scatters, or the first half of all-reduces
  double gradients_gathered = 0;  ///< in the second half of all-reduces
  double parameters_gathered = 0;
  double total() const { return gradients_reduced + gradients_gathered + parameters_gathered; }
};

/// With equal shares: DDP 2 V (N-1)/N, ZeRO-1 and ZeRO-2 the same, naive ZeRO-1 3 V (N-1)/N, ZeRO-3
/// 3 V (N-1)/N, kept 2 V (N-1)/N; placeholders send (N-1) V for gradients. `kept_share` is the part
/// of the parameters, 0 to 1, that ZeRO-3 does not gather again for backward (the root unit).
Traffic sent(Scheme scheme, const Copies& copies, std::int64_t world_size, double kept_share = 0);

/// The same without the factor (N-1)/N, as papers print it: 2 V, 2 V, 2 V, 3 V. For
/// kZero2Placeholder it is N V + V.
Traffic volume(Scheme scheme, const Copies& copies, std::int64_t world_size, double kept_share = 0);

/// One layer under tensor parallelism: four all-reduces of the layer's output, [tokens, hidden], in
/// a step, two in forward and two in backward (Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
/// section 3). An all-reduce sends 2 (N-1)/N of its bytes: 8 tokens hidden e (N-1)/N bytes for a
/// rank, e bytes an element. `tokens` are those of the whole group, which works on one batch
/// together.
double tensor_parallel_sent(std::int64_t tokens, std::int64_t hidden, std::int64_t element_bytes,
                            std::int64_t world_size);

/// The tokens of a step, over all N ranks together, from which on ZeRO-3 sends less for a layer
/// than tensor parallelism: the smallest T with 3 V_layer < 8 T hidden e. Below it ZeRO-3 loses. N
/// cancels; per rank it is T/N tokens. 4.5 x hidden for a layer of 12 hidden^2 parameters.
std::int64_t tensor_parallel_crossover(std::int64_t layer_elements, std::int64_t hidden,
                                       const Policy& policy);

}  // namespace zero::plan

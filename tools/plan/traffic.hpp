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

/// What is sent, in which way.
enum class Scheme {
  kDdp,               ///< all-reduce of gradients
  kZero1,             ///< reduce-scatter gradients, all-gather updated parameters
  kZero1Naive,        ///< all-reduce gradients, all-gather updated parameters
  kZero2,             ///< as kZero1
  kZero2Placeholder,  ///< a reduce-scatter per parameter, padded with zeros for non-owners
  kZero3,             ///< gather for forward, gather for backward, reduce-scatter gradients
  kZero3Kept,         ///< gather once, keep until backward has passed, reduce-scatter gradients
};

/// "DDP", "ZeRO-1 naive", "ZeRO-3 kept" and so on.
const char* name(Scheme scheme);
/// The usual way of a stage.
Scheme scheme_of(Stage stage);

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

}  // namespace zero::plan

#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <zero/train/costs.hpp>

/// What a stage of ZeRO holds of model states and sends in a step with one micro-batch, by formula.
///
/// Sources: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion
/// Parameter Models" (arXiv:1910.02054), section 3.1 for the 2 + 2 + 12 bytes of mixed precision
/// Adam, section 5 for what each stage divides by N, table 1 for the figures, section 7 for sending
/// 2 V and 3 V; the factor (N-1)/N and the two halves of an all-reduce from Patarasuk and Yuan,
/// "Bandwidth optimal all-reduce algorithms for clusters of workstations" (Journal of Parallel and
/// Distributed Computing 69(2), 2009), section 3. docs/formulas.md has every line.
/// P is the number of parameters, V the bytes of one copy, N the world size, at least 1. Bytes held
/// are those of the fullest rank: if N does not divide P, its shard has ceil(P/N) elements.
namespace zero::plan {

/// Numbers of parameters are told in billions.
inline constexpr std::int64_t kBillion = 1'000'000'000;
/// The most ranks that anything here is asked about.
inline constexpr std::int64_t kMostRanks = 1'000'000;

enum class Stage { kDdp, kZero1, kZero2, kZero3 };
inline constexpr Stage kStages[] = {Stage::kDdp, Stage::kZero1, Stage::kZero2, Stage::kZero3};

/// "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3".
const char* name(Stage stage);

/// Bytes that a parameter takes in each kind of model state.
struct Policy {
  const char* name;
  std::int64_t parameter, gradient;
  std::int64_t optimizer;  ///< moments, and master weights if there are any
  std::int64_t total() const { return parameter + gradient + optimizer; }
};

/// With AdamW's two moments: in float32, and in 2 bytes with float32 master weights.
constexpr Policy fp32() { return {"fp32", 4, 4, 8}; }
constexpr Policy mixed() { return {"mixed", 2, 2, 12}; }

/// `elements` over `ranks`, rounded up.
std::int64_t share(std::int64_t elements, std::int64_t ranks);

/// Model states of one rank, in bytes.
using States = train::ModelStateBytes;

/// With s = ceil(P/N) and p, g, o the bytes of `policy`: DDP (p + g + o) P; ZeRO-1 (p + g) P + o s;
/// ZeRO-2 p P + (g + o) s; ZeRO-3 (p + g + o) s.
States model_states(std::int64_t parameters, const Policy& policy, Stage stage,
                    std::int64_t world_size);

/// Of all that N ranks of DDP hold, the share that is a further copy: (N-1)/N. Memory efficiency is
/// the rest, 1/N (ZeRO, section 4.1).
double redundant_share(std::int64_t world_size);

/// The fewest ranks from `from` on with which `needed(N)`, which must not grow with N, is at most
/// `limit` bytes; nothing if even kMostRanks ranks do not suffice.
std::optional<std::int64_t> fewest_ranks(std::int64_t limit, std::int64_t from,
                                         const std::function<std::int64_t(std::int64_t)>& needed);

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
  double gradients = 0, parameters = 0;
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

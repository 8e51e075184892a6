#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <zero/train/costs.hpp>

/// Model states by formula: what a rank must hold to train, before activations and buffers.
///
/// Source of all formulas here: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward
/// Training Trillion Parameter Models" (arXiv:1910.02054), section 3.1 for the 2 + 2 + 12 bytes of
/// mixed precision Adam, section 5 for what each stage divides by N, table 1 for the figures.
/// P is the number of parameters, N the world size. Bytes are those of the fullest rank: if N does
/// not divide P, its shard has ceil(P/N) elements.
namespace zero::plan {

/// Numbers of parameters are told in billions.
inline constexpr std::int64_t kBillion = 1'000'000'000;

enum class Stage { kDdp, kZero1, kZero2, kZero3 };
inline constexpr Stage kStages[] = {Stage::kDdp, Stage::kZero1, Stage::kZero2, Stage::kZero3};

/// "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3".
const char* name(Stage stage);

/// Bytes that a parameter takes in each kind of model state.
struct Policy {
  std::string name = "fp32";
  std::int64_t parameter = 4;
  std::int64_t gradient = 4;
  std::int64_t optimizer = 8;  ///< moments, and master weights if there are any
  std::int64_t total() const { return parameter + gradient + optimizer; }
};

/// 4 + 4 + 4 for each moment: 4 + 4 + 8 with AdamW. Optimizers are "adamw" (two moments),
/// "momentum" (one) and "sgd" (none). Throws zero::Error for another, with the known ones.
Policy fp32(std::string_view optimizer = "adamw");
/// 2 + 2 + fp32 master weights and moments: 2 + 2 + 12 with AdamW.
Policy mixed(std::string_view optimizer = "adamw");
/// "fp32" or "mixed" ("bf16" and "fp16" mean mixed). Throws zero::Error for another name, of the
/// policy or of the optimizer, with the known ones.
Policy policy(std::string_view dtype, std::string_view optimizer);

/// Model states of one rank, in bytes.
using States = train::ModelStateBytes;

/// With s = ceil(P/N) and p, g, o the bytes of `policy`: DDP (p + g + o) P; ZeRO-1 (p + g) P + o s;
/// ZeRO-2 p P + (g + o) s; ZeRO-3 (p + g + o) s. Throws zero::Error for a world size below 1.
States model_states(std::int64_t parameters, const Policy& policy, Stage stage,
                    std::int64_t world_size);

/// All that the fullest rank holds in a step, in bytes.
struct Held {
  States states;
  /// What a step needs besides, in whole bytes and never too little: the scratch of a reduction;
  /// from ZeRO-2 on the gradients of the root and of one unit before they have left; under ZeRO-3
  /// the parameters of the root and of one unit, gathered. What the rank owns of them is not
  /// counted twice. Nothing at one rank. On a mesh also messages between stages, and from ZeRO-2 on
  /// the whole gradients of several micro-batches, which are added up before they are reduced.
  std::int64_t transients = 0;
  std::int64_t activations = 0;  ///< in a pipeline of the micro-batches that are in flight
  std::optional<bool> fits;      ///< nothing if no memory was given

  /// An upper bound: activations shrink while gradients grow, so the peak is lower.
  std::int64_t total() const { return states.total() + transients + activations; }
};

/// Of all that N ranks of DDP hold, the share that is a further copy: (N-1)/N. Memory efficiency is
/// the rest, 1/N (ZeRO, section 4.1).
double redundant_share(std::int64_t world_size);

/// The most ranks that anything here is asked about.
inline constexpr std::int64_t kLargestWorldSize = 1'000'000;

/// The fewest ranks from `from` on with which `needed(N)`, which must not grow with N, is at most
/// `limit` bytes; nothing if even kLargestWorldSize ranks do not suffice.
std::optional<std::int64_t> fewest_ranks(std::int64_t limit, std::int64_t from,
                                         const std::function<std::int64_t(std::int64_t)>& needed);

}  // namespace zero::plan

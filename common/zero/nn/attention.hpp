#pragma once

#include <torch/types.h>

#include <cstdint>

namespace zero::nn {

/// Angles of the rotary position embedding (Su et al. 2021) for positions 0 to length - 1, in the
/// half-split convention of Hugging Face's Llama: element i of a head turns with element
/// i + head_size / 2, at the frequency theta^(-2 i / head_size).
struct RotaryTable {
  at::Tensor cosine;  ///< [length, head_size / 2]
  at::Tensor sine;    ///< [length, head_size / 2]
};

/// Makes the table: computed in fp32 (fp64 for `dtype` fp64) and rounded to `dtype` at the end, on
/// `device`. The bytes are charged to memory::Category::kOther.
RotaryTable rotary_table(std::int64_t length, std::int64_t head_size, double theta,
                         at::ScalarType dtype, at::Device device = at::kCPU);

/// Turns every head of `x` [B, S, heads, head_size] by its position's angle; returns the same
/// shape. The table must have at least S positions. Saves only the table for backward.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

/// Causal attention with grouped-query heads: query head h reads key and value head h / (heads /
/// kv_heads). `query` [B, S, heads, head_size], `key` and `value` [B, S, kv_heads, head_size];
/// returns [B, S, heads, head_size].
///
/// Batches padded on the right need no other mask: position i reads positions 0 to i only, and
/// padding comes after every real token, so no real token reads padding. The loss must leave out
/// the padding positions, as kIgnoredTarget and the lengths of Llama::loss() do.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value);

}  // namespace zero::nn

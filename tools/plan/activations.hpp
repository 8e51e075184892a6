#pragma once

#include <cstdint>

#include "model.hpp"

/// Activations: what forward keeps for backward. An estimate; model states are exact.
///
/// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
/// (arXiv:2205.05198), section 4.1, which counts 34 s b h bytes a layer in 2-byte types beside the
/// attention matrix (s tokens, b samples, h hidden size). Counted here the same way but for two
/// things: there is no dropout, so no masks (2 s b h), and the attention matrix (5 a s^2 b) is
/// never kept, as in FlashAttention (arXiv:2205.14135) and scaled_dot_product_attention. A GPT
/// layer then keeps 16 h elements a token, 32 s b h bytes.
namespace zero::plan {

/// Whether layers keep everything, or only their input and compute the rest again in backward.
enum class Recompute { kNone, kLayers };

/// Elements that one layer keeps for one token:
///   4 hidden        inputs and outputs of two norms (the outputs are the projections' inputs)
///   4 attention     queries, keys, values (as wide as the queries) and the attention's output
///   mlp_tensors x mlp
std::int64_t layer_elements(const Shape& shape);

/// Bytes of a rank: layers x layer_elements() x tokens, and for a language model the logits and
/// their gradient, 2 x vocabulary x tokens; `element_bytes` each. With Recompute::kLayers: hidden x
/// layers x tokens, and everything of one layer. Throws zero::Error beyond 2^62 bytes.
std::int64_t activation_bytes(const Shape& shape, std::int64_t tokens, std::int64_t element_bytes,
                              Recompute recompute = Recompute::kNone);

}  // namespace zero::plan

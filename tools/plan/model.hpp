#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <zero/nn/llama_config.hpp>

/// What the planner knows of a model: sizes only, no values.
namespace zero::plan {

/// Sizes that activations depend on; in elements of one token.
struct Shape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t attention = 0;  ///< heads x head size: width of queries, and of keys once repeated
  std::int64_t mlp = 0;        ///< intermediate size
  /// Tensors of the MLP's width that backward needs: input and output of the activation (2), or
  /// gate, up and their product (3).
  std::int64_t mlp_tensors = 2;
  std::int64_t vocabulary = 0;  ///< 0: not known, or no logits over it (a classifier)
};

struct Model {
  std::string name = {};
  std::int64_t parameters = 0;
  /// Elements of what is gathered together: a layer each, in order of forward.
  std::vector<std::int64_t> units = {};
  /// Elements of the root unit: embedding, final norm and head. 0 if nothing is known of it.
  std::int64_t root = 0;
  Shape shape = {};
  std::optional<nn::LlamaConfig> llama = {};  ///< if it is one
  std::string note = {};                      ///< what is guessed

  std::int64_t largest_unit() const;
};

/// A Llama of this shape.
Model model_of(const nn::LlamaConfig& config, std::string name);

/// A model of which only the number of parameters is known. All of it is taken to lie in `layers`
/// equal layers of 12 hidden^2 parameters (4 hidden^2 in attention, 8 in the MLP: Kaplan et al.,
/// "Scaling Laws for Neural Language Models", arXiv:2001.08361, table 1), so there is no root unit
/// and no logits. `layers` 0: as many as make hidden = 128 x layers, the proportion of 7 B and 13 B
/// Llamas; a note says that this is a guess. `parameters` is from 1 to nn::kMostParameters,
/// `layers` at most nn::kMostLayers. Throws zero::Error for more layers than parameters.
Model model_of_size(std::int64_t parameters, std::int64_t layers = 0);

/// Elements that one layer keeps for one token from forward to backward, an estimate:
///   4 hidden        inputs and outputs of two norms (the outputs are the projections' inputs)
///   4 attention     queries, keys, values (as wide as the queries) and the attention's output
///   mlp_tensors x mlp
///
/// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
/// (arXiv:2205.05198), section 4.1, which counts 34 s b h bytes a layer in 2-byte types beside the
/// attention matrix (s tokens, b samples, h hidden size). Counted here the same way but for two
/// things: there is no dropout, so no masks (2 s b h), and the attention matrix (5 a s^2 b) is
/// never kept, as in FlashAttention (arXiv:2205.14135) and scaled_dot_product_attention. A GPT
/// layer then keeps 16 h elements a token, 32 s b h bytes.
std::int64_t layer_elements(const Shape& shape);

}  // namespace zero::plan

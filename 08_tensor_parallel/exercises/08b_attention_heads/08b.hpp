#pragma once

#include <torch/types.h>

#include <stdexcept>
#include <string>

namespace exercise_08b {

/// The weights of an attention layer, float64, with d elements a head and h columns of activations.
struct Attention {
  int heads = 0;            ///< of queries
  int key_value_heads = 0;  ///< query heads 0 to heads / key_value_heads - 1 share number 0, …
  at::Tensor query;         ///< [heads * d, h]: d rows for each head
  at::Tensor key, value;    ///< [key_value_heads * d, h]
  at::Tensor output;        ///< [h, heads * d]: d columns for each head
};

/// What an answer consists of.
struct Answer {
  /// Returns what tensor rank `rank` of `ranks` holds: the same kind of layer, with this rank's
  /// heads only, in memory of its own. Throws std::invalid_argument, which names the number of
  /// heads (or of key/value heads) and the number of ranks, if they cannot be shared evenly.
  Attention (*part_of)(const Attention& whole, int rank, int ranks);
};

}  // namespace exercise_08b

// expects: 15 heads and 5 key/value heads on 2 ranks are not refused
#include "08b.hpp"

using exercise_08b::Attention;

// wrong: nothing is refused
Attention part_of(const Attention& whole, int rank, int ranks) {
  const auto cut = [&](const at::Tensor& matrix, int axis) {
    return matrix.chunk(ranks, axis)[rank].clone(at::MemoryFormat::Contiguous);
  };
  return {whole.heads / ranks, whole.key_value_heads / ranks, cut(whole.query, 0),
          cut(whole.key, 0),   cut(whole.value, 0),           cut(whole.output, 1)};
}

// expects: are refused with 'heads must divide', which does not name 15 heads
#include "08b.hpp"

using exercise_08b::Attention;

Attention part_of(const Attention& whole, int rank, int ranks) {
  if (whole.heads % ranks != 0 || whole.key_value_heads % ranks != 0) {
    throw std::invalid_argument("heads must divide");  // wrong: which heads, and by how many?
  }
  const auto cut = [&](const at::Tensor& matrix, int axis) {
    return matrix.chunk(ranks, axis)[rank].clone(at::MemoryFormat::Contiguous);
  };
  return {whole.heads / ranks, whole.key_value_heads / ranks, cut(whole.query, 0),
          cut(whole.key, 0),   cut(whole.value, 0),           cut(whole.output, 1)};
}

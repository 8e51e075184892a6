#include "08b.hpp"

using exercise_08b::Attention;

namespace {

void require_divides(int count, const std::string& what, int ranks) {
  if (count % ranks == 0) return;
  throw std::invalid_argument("the layer has " + std::to_string(count) + " " + what + ", which " +
                              std::to_string(ranks) + " tensor ranks cannot share evenly");
}

}  // namespace

Attention part_of(const Attention& whole, int rank, int ranks) {
  require_divides(whole.heads, "heads", ranks);
  require_divides(whole.key_value_heads, "key/value heads", ranks);
  const auto cut = [&](const at::Tensor& matrix, int axis) {
    return matrix.chunk(ranks, axis)[rank].clone(at::MemoryFormat::Contiguous);
  };
  return {whole.heads / ranks, whole.key_value_heads / ranks, cut(whole.query, 0),
          cut(whole.key, 0),   cut(whole.value, 0),           cut(whole.output, 1)};
}

// expects: has 4 heads and 4 key/value heads, and 4 and 2 are its own
#include "06a.hpp"

using exercise_06a::Attention;

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
  // wrong: they are cut as well
  return {whole.heads / ranks, whole.key_value_heads, cut(whole.query, 0),
          whole.key.clone(),   whole.value.clone(),   cut(whole.output, 1)};
}

// expects: has other rows of query than those of its heads
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
  // wrong: heads rank, rank + ranks, …, which use key/value heads of other ranks
  const std::int64_t hidden = whole.query.size(1);
  const at::Tensor query = whole.query.view({whole.heads / ranks, ranks, -1, hidden})
                               .select(1, rank)
                               .clone(at::MemoryFormat::Contiguous)
                               .view({-1, hidden});
  return {whole.heads / ranks, whole.key_value_heads / ranks, query,
          cut(whole.key, 0),   cut(whole.value, 0),           cut(whole.output, 1)};
}

#include <algorithm>

#include <zero/distributed/reduction.hpp>

namespace zero::dist {

std::string_view name(ReduceType type) {
  return type == ReduceType::kFloat32 ? "float32" : "their own type";
}

std::int64_t piece_begin(std::int64_t elements, int rank, int size) {
  return rank * (elements / size) + std::min<std::int64_t>(rank, elements % size);
}

std::int64_t all_reduce_bytes(std::int64_t elements, std::int64_t element_size, int rank,
                              int size) {
  const std::int64_t mine =
      piece_begin(elements, rank + 1, size) - piece_begin(elements, rank, size);
  return (elements - mine + (size - 1) * mine) * element_size;
}

}  // namespace zero::dist

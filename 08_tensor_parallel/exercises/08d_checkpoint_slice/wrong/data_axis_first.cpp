// expects: first cut out the part, then shard it
#include "08d.hpp"

using exercise_08d::Cut;
using exercise_08d::Matrix;
using exercise_08d::Place;
using exercise_08d::Range;

std::vector<Range> ranges_of(const Matrix& matrix, const Place& place) {
  // wrong: the data ranks share a part, they do not cut the whole matrix
  const std::int64_t elements = matrix.rows * matrix.columns;
  const std::int64_t shard = (elements + place.data_ranks - 1) / place.data_ranks;
  std::int64_t begin = std::min(elements, place.data * shard);
  std::int64_t count = std::min(elements, begin + shard) - begin;
  if (matrix.cut != Cut::kNone) {
    count /= place.tensor_ranks;
    begin += place.tensor * count;
  }
  if (count == 0) return {};
  return {{matrix.file, matrix.begin + 4 * begin, 4 * count}};
}

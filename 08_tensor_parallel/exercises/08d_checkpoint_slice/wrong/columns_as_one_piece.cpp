// expects: a part of columns is read as if its numbers stood together in the file
#include "08d.hpp"

using exercise_08d::Cut;
using exercise_08d::Matrix;
using exercise_08d::Place;
using exercise_08d::Range;

std::vector<Range> ranges_of(const Matrix& matrix, const Place& place) {
  // wrong: a part of columns does not stand together in the file
  std::int64_t rows = matrix.rows * matrix.columns, row = 0;
  const std::int64_t columns = 1, column = 0;
  if (matrix.cut != Cut::kNone) {
    rows /= place.tensor_ranks;
    row = place.tensor * rows;
  }
  const std::int64_t elements = rows * columns;
  const std::int64_t shard = (elements + place.data_ranks - 1) / place.data_ranks;
  const std::int64_t end = std::min(elements, (place.data + 1) * shard);
  std::vector<Range> ranges;
  for (std::int64_t k = place.data * shard; k < end;) {
    const std::int64_t count = std::min(columns - k % columns, end - k);  // to the end of the row
    const std::int64_t element = (row + k / columns) + column + k % columns;
    const std::int64_t begin = matrix.begin + 4 * element;
    if (!ranges.empty() && ranges.back().begin + ranges.back().size == begin) {
      ranges.back().size += 4 * count;
    } else {
      ranges.push_back({matrix.file, begin, 4 * count});
    }
    k += count;
  }
  return ranges;
}

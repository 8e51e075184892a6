#include "08d.hpp"

using exercise_08d::Cut;
using exercise_08d::Matrix;
using exercise_08d::Place;
using exercise_08d::Range;

std::vector<Range> ranges_of(const Matrix& matrix, const Place& place) {
  // The part: its first row and column, and its size.
  std::int64_t row = 0, rows = matrix.rows, column = 0, columns = matrix.columns;
  if (matrix.cut == Cut::kRows) {
    rows /= place.tensor_ranks;
    row = place.tensor * rows;
  } else if (matrix.cut == Cut::kColumns) {
    columns /= place.tensor_ranks;
    column = place.tensor * columns;
  }
  const std::int64_t elements = rows * columns;
  const std::int64_t shard = (elements + place.data_ranks - 1) / place.data_ranks;
  const std::int64_t end = std::min(elements, (place.data + 1) * shard);
  std::vector<Range> ranges;
  for (std::int64_t k = place.data * shard; k < end;) {
    const std::int64_t count = std::min(columns - k % columns, end - k);  // to the end of the row
    const std::int64_t element = (row + k / columns) * matrix.columns + column + k % columns;
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

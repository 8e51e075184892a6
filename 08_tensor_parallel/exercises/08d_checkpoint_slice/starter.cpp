#include "08d.hpp"

using exercise_08d::Cut;
using exercise_08d::Matrix;
using exercise_08d::Place;
using exercise_08d::Range;

std::vector<Range> ranges_of(const Matrix& matrix, const Place& place) {
  // {matrix.file, matrix.begin, 4} is the first number of the whole matrix.
  return {};
}

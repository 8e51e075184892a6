#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace exercise_08d {

/// How the tensor ranks share a matrix.
enum class Cut {
  kNone,     ///< each tensor rank has all of it
  kRows,     ///< tensor rank t of T has rows t R/T to (t + 1) R/T - 1
  kColumns,  ///< the same of its columns
};

/// A matrix of float32 in a checkpoint, row after row.
struct Matrix {
  std::string file;
  std::int64_t begin;  ///< of its first byte in the file
  std::int64_t rows, columns;
  Cut cut;  ///< the axis that is cut divides by the number of tensor ranks
};

/// A rank's place on the mesh.
struct Place {
  int data, data_ranks;
  int tensor, tensor_ranks;
};

/// Consecutive bytes of a file.
struct Range {
  std::string file;
  std::int64_t begin, size;
};

/// What an answer consists of.
struct Answer {
  /// Returns the bytes that the rank at `place` reads of `matrix`, in the order in which they stand
  /// in its shard. No range is empty, and no two that follow each other can be one.
  std::vector<Range> (*ranges_of)(const Matrix& matrix, const Place& place);
};

}  // namespace exercise_08d

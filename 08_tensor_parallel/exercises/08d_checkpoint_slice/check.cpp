// Reads a checkpoint in memory by the ranges of each rank, and compares what it gets.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "08d.hpp"

namespace exercise_08d {

using zero::exercise::Mistake;
using Values = std::vector<int>;

constexpr int kElement = 4;  // bytes

// Two matrices in each file, after a header, with other things between.
const std::vector<Matrix> kCheckpoint = {{"one", 32, 6, 6, Cut::kRows},
                                         {"one", 180, 4, 6, Cut::kColumns},
                                         {"two", 8, 1, 7, Cut::kNone},
                                         {"two", 40, 2, 10, Cut::kColumns},
                                         {"two", 128, 12, 1, Cut::kRows}};
constexpr Place kMeshes[] = {{0, 2, 0, 2}, {0, 1, 0, 1}, {0, 3, 0, 1}, {0, 1, 0, 2}, {0, 5, 0, 2}};

// The number of the element at a byte of a file: what the file holds there.
int value_at(const std::string& file, std::int64_t byte) {
  return static_cast<int>((file == "one" ? 0 : 1000) + byte / kElement);
}

struct Part {
  std::int64_t row, rows, column, columns;
};

Part part_of(const Matrix& matrix, const Place& place) {
  Part part = {0, matrix.rows, 0, matrix.columns};
  if (matrix.cut == Cut::kRows) {
    part.rows /= place.tensor_ranks;
    part.row = place.tensor * part.rows;
  } else if (matrix.cut == Cut::kColumns) {
    part.columns /= place.tensor_ranks;
    part.column = place.tensor * part.columns;
  }
  return part;
}

// What the rank must have: its shard of its part.
Values right_values(const Matrix& matrix, const Place& place) {
  const Part part = part_of(matrix, place);
  const std::int64_t elements = part.rows * part.columns;
  const std::int64_t shard = (elements + place.data_ranks - 1) / place.data_ranks;
  Values values;
  for (std::int64_t i = place.data * shard; i < std::min(elements, (place.data + 1) * shard); ++i) {
    const std::int64_t row = part.row + i / part.columns, column = part.column + i % part.columns;
    values.push_back(
        value_at(matrix.file, matrix.begin + kElement * (row * matrix.columns + column)));
  }
  return values;
}

// What the ranges have in the files. `begin` names the rank and the matrix.
Values read(const std::vector<Range>& ranges, const Matrix& matrix, const std::string& begin) {
  Values values;
  const std::int64_t end = matrix.begin + kElement * matrix.rows * matrix.columns;
  for (const Range& range : ranges) {
    const std::string text = fmt::format("{}bytes {} to {} of file '{}'", begin, range.begin,
                                         range.begin + range.size, range.file);
    if (range.size <= 0) throw Mistake(text + " are a range without bytes");
    if (range.begin % kElement != 0 || range.size % kElement != 0) {
      throw Mistake(text + " cut a number: elements have 4 bytes");
    }
    if (range.file != matrix.file) throw Mistake(text + " are of another file");
    if (range.begin < matrix.begin || range.begin + range.size > end) {
      throw Mistake(fmt::format(
          "{} are read, and those of the matrix are {} to {}: {}", text, matrix.begin, end,
          range.begin < matrix.begin ? "count from the matrix's first byte"
                                     : "what pads the last shard is not in the file"));
    }
    for (std::int64_t byte = range.begin; byte < range.begin + range.size; byte += kElement) {
      values.push_back(value_at(range.file, byte));
    }
  }
  return values;
}

// The shard if the data axis were cut first, and each shard by the tensor ranks.
Values cut_in_other_order(const Matrix& matrix, const Place& place) {
  Matrix whole = matrix;
  whole.cut = Cut::kNone;
  const Values shard = right_values(whole, place);
  const auto count = static_cast<std::ptrdiff_t>(shard.size()) / place.tensor_ranks;
  const auto first = shard.begin() + place.tensor * count;
  return {first, first + count};
}

// The shard if the numbers of a part stood one after the other in the file.
Values as_if_rows(const Matrix& matrix, const Place& place) {
  Matrix flat = matrix;
  flat.cut = Cut::kRows;
  flat.rows = matrix.rows * matrix.columns;
  flat.columns = 1;
  return right_values(flat, place);
}

std::string explain(const Matrix& matrix, const Place& place, const Values& values,
                    const Values& right) {
  if (values.size() > right.size()) {
    if (std::equal(right.begin(), right.end(), values.begin())) {
      return "more numbers are read than its shard has: what pads the last shard is not in the "
             "file";
    }
    return fmt::format("{} numbers are read, and its shard has {}: {}", values.size(), right.size(),
                       matrix.cut == Cut::kColumns ? "of a row it needs some columns only"
                       : matrix.cut == Cut::kNone  ? "the data ranks share it"
                                                   : "it needs its own rows only");
  }
  if (values.size() < right.size()) {
    return fmt::format("{} of its {} numbers are read{}", values.size(), right.size(),
                       matrix.cut == Cut::kNone ? ": each tensor rank needs them all" : "");
  }
  if (matrix.cut == Cut::kColumns && values == as_if_rows(matrix, place)) {
    return "a part of columns is read as if its numbers stood together in the file";
  }
  if (values == cut_in_other_order(matrix, place)) {
    return "the data ranks' shards are cut by tensor ranks: first cut out the part, then shard it";
  }
  return "it reads numbers of other ranks, or its own in another order";
}

void check_rank(const Answer& answer, const Matrix& matrix, const Place& place) {
  const std::string begin = fmt::format(
      "rank (data {} of {}, tensor {} of {}), matrix of {} x {} cut by {}: ", place.data,
      place.data_ranks, place.tensor, place.tensor_ranks, matrix.rows, matrix.columns,
      matrix.cut == Cut::kNone   ? "nothing"
      : matrix.cut == Cut::kRows ? "rows"
                                 : "columns");
  const std::vector<Range> ranges = answer.ranges_of(matrix, place);
  const Values values = read(ranges, matrix, begin), right = right_values(matrix, place);
  if (values != right) throw Mistake(begin + explain(matrix, place, values, right));
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].begin + ranges[i - 1].size != ranges[i].begin) continue;
    throw Mistake(fmt::format("{}byte {} ends one range and begins the next: read both at once",
                              begin, ranges[i].begin));
  }
}

void check(const Answer& answer) {
  for (const Place& mesh : kMeshes) {
    for (const Matrix& matrix : kCheckpoint) {
      Place place = mesh;
      for (place.data = 0; place.data < mesh.data_ranks; ++place.data) {
        for (place.tensor = 0; place.tensor < mesh.tensor_ranks; ++place.tensor) {
          check_rank(answer, matrix, place);
        }
      }
    }
  }
}

}  // namespace exercise_08d

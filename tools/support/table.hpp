#pragma once

#include <functional>
#include <string>
#include <vector>

namespace zero::tools {

enum class Align { kLeft, kRight };

/// One column of a table.
struct Column {
  std::string header;
  Align align = Align::kRight;
  /// Shown on its own line under the headers ("MiB", "s"); empty if the column has none. The line
  /// is left out if no column has a unit.
  std::string unit = {};
  /// Neighbouring columns with the same group are set closer together under a common heading, as in
  /// "parameters" over "mean" and "max". Empty: no group.
  std::string group = {};
};

using Cells = std::vector<std::string>;

/// A table for a terminal: a rule of dashes under the headers, two spaces between columns (one
/// inside a group), no space at the end of a line, and a newline at the end of each. The caller
/// turns numbers into text (see fixed()), so that every column has its own number of decimals.
/// Widths are counted in bytes: cells must be plain ASCII. Each row has a cell for each column.
std::string table_text(const std::vector<Column>& columns, const std::vector<Cells>& rows);

/// A column, and its cell in the row of a `Row`.
template <class Row>
struct Figure : Column {
  std::function<std::string(const Row&)> cell;
};

/// The table of these figures, with a row for each of `rows`.
template <class Row>
std::string table_of(const std::vector<Row>& rows, const std::vector<Figure<Row>>& figures) {
  std::vector<Cells> cells;
  for (const Row& row : rows) {
    cells.emplace_back();
    for (const Figure<Row>& figure : figures) cells.back().push_back(figure.cell(row));
  }
  return table_text({figures.begin(), figures.end()}, cells);
}

/// `value` with a fixed number of decimals: fixed(0.5, 3) is "0.500". "-" if it is not finite, and
/// never "-0.000".
std::string fixed(double value, int decimals);

}  // namespace zero::tools

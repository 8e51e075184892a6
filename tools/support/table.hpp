#pragma once

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

/// The same with a row for each of `rows`, whose cells `cells_of` gives.
template <class Row, class CellsOf>
std::string table_of(const std::vector<Column>& columns, const std::vector<Row>& rows,
                     const CellsOf& cells_of) {
  std::vector<Cells> cells;
  for (const Row& row : rows) cells.push_back(cells_of(row));
  return table_text(columns, cells);
}

/// `value` with a fixed number of decimals: fixed(0.5, 3) is "0.500". "-" if it is not finite, and
/// never "-0.000".
std::string fixed(double value, int decimals);

}  // namespace zero::tools

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero::tools {

enum class Align { kLeft, kRight };

/// One column of a Table.
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

/// A table of text cells, printed with aligned columns for a terminal.
///
/// The caller turns numbers into text (see fixed()), so that every column has its own number of
/// decimals. Widths are counted in bytes: cells must be plain ASCII.
class Table {
 public:
  /// Throws zero::Error if there is no column.
  explicit Table(std::vector<Column> columns);

  /// Adds a row with one cell for each column. Throws zero::Error if the count differs.
  Table& add_row(std::vector<std::string> cells);

  std::size_t rows() const { return rows_.size(); }

  /// The table with a rule of dashes under the headers, two spaces between columns (one inside a
  /// group), no space at the end of a line, and a newline at the end of each.
  std::string to_text() const;

 private:
  /// Columns under one heading.
  struct Span {
    std::size_t first, last, width;
  };
  std::vector<Span> spans(const std::vector<std::size_t>& widths) const;
  std::vector<std::size_t> column_widths() const;
  bool joined_to_previous(std::size_t column) const;
  std::string group_line(const std::vector<std::size_t>& widths) const;
  std::string text_line(const std::vector<std::size_t>& widths,
                        const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// `value` with a fixed number of decimals: fixed(0.5, 3) is "0.500". "-" if it is not finite, and
/// never "-0.000".
std::string fixed(double value, int decimals);

}  // namespace zero::tools

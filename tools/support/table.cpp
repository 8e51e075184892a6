#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/error.hpp>

namespace zero::tools {
namespace {

std::string padded(const std::string& cell, std::size_t width, Align align) {
  const std::string space(width > cell.size() ? width - cell.size() : 0, ' ');
  return align == Align::kLeft ? cell + space : space + cell;
}

void strip_trailing_spaces(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  if (columns_.empty()) throw Error("a table needs at least one column");
}

Table& Table::add_row(std::vector<std::string> cells) {
  if (cells.size() != columns_.size()) {
    throw Error(fmt::format("a row of {} cells does not fit a table of {} columns", cells.size(),
                            columns_.size()));
  }
  rows_.push_back(std::move(cells));
  return *this;
}

bool Table::joined_to_previous(std::size_t column) const {
  return column > 0 && !columns_[column].group.empty() &&
         columns_[column].group == columns_[column - 1].group;
}

std::vector<std::size_t> Table::column_widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = std::max(columns_[i].header.size(), columns_[i].unit.size());
    for (const auto& row : rows_) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  // A group's heading may be wider than its columns: the last column is widened then.
  for (const Span& span : spans(widths)) {
    const std::size_t needed = columns_[span.first].group.size();
    if (needed > span.width) widths[span.last] += needed - span.width;
  }
  return widths;
}

std::vector<Table::Span> Table::spans(const std::vector<std::size_t>& widths) const {
  std::vector<Span> all;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (joined_to_previous(i)) {
      all.back().last = i;
      all.back().width += 1 + widths[i];
    } else {
      all.push_back({i, i, widths[i]});
    }
  }
  return all;
}

std::string Table::group_line(const std::vector<std::size_t>& widths) const {
  std::string line;
  for (const auto& [first, last, width] : spans(widths)) {
    const std::string& group = columns_[first].group;
    if (first > 0) line += "  ";
    // If there is room, dashes on both sides show which columns the heading spans.
    if (!group.empty() && group.size() + 4 <= width) {
      line += fmt::format("{:-^{}}", " " + group + " ", width);
    } else {
      line += fmt::format("{:^{}}", group, width);
    }
  }
  strip_trailing_spaces(line);
  return line + "\n";
}

std::string Table::text_line(const std::vector<std::size_t>& widths,
                             const std::vector<std::string>& cells) const {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += joined_to_previous(i) ? " " : "  ";
    line += padded(cells[i], widths[i], columns_[i].align);
  }
  strip_trailing_spaces(line);
  return line + "\n";
}

std::string Table::to_text() const {
  const std::vector<std::size_t> widths = column_widths();
  std::vector<std::string> headers;
  std::vector<std::string> units;
  std::size_t total = 0;
  bool any_unit = false;
  bool any_group = false;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    headers.push_back(columns_[i].header);
    units.push_back(columns_[i].unit);
    any_unit |= !columns_[i].unit.empty();
    any_group |= !columns_[i].group.empty();
    total += widths[i] + (i == 0 ? 0 : joined_to_previous(i) ? 1 : 2);
  }
  std::string text = any_group ? group_line(widths) : std::string();
  text += text_line(widths, headers);
  if (any_unit) text += text_line(widths, units);
  text += std::string(total, '-') + "\n";
  for (const auto& row : rows_) text += text_line(widths, row);
  return text;
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

}  // namespace zero::tools

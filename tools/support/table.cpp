#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace zero::tools {
namespace {

// Columns that are set under one heading.
struct Span {
  std::size_t first = 0, last = 0, width = 0;
};

std::vector<Span> spans(const std::vector<Column>& columns,
                        const std::vector<std::size_t>& widths) {
  std::vector<Span> all;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::string& group = columns[i].group;
    if (i > 0 && !group.empty() && group == columns[i - 1].group) {
      all.back().last = i;
      all.back().width += 1 + widths[i];
    } else {
      all.push_back({i, i, widths[i]});
    }
  }
  return all;
}

std::vector<std::size_t> widths_of(const std::vector<Column>& columns,
                                   const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    widths.push_back(std::max(columns[i].header.size(), columns[i].unit.size()));
    for (const Cells& row : rows) widths[i] = std::max(widths[i], row.at(i).size());
  }
  // A group's heading may be wider than its columns: the last column is widened then.
  for (const Span& span : spans(columns, widths)) {
    const std::size_t needed = columns[span.first].group.size();
    if (needed > span.width) widths[span.last] += needed - span.width;
  }
  return widths;
}

// Two spaces between spans and one inside, and none at the end.
std::string joined(const std::vector<Span>& spans,
                   const std::function<std::string(std::size_t)>& cell) {
  std::string line;
  for (const Span& span : spans) {
    if (span.first > 0) line += "  ";
    for (std::size_t i = span.first; i <= span.last; ++i) {
      line += (i > span.first ? " " : "") + cell(i);
    }
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// If there is room, dashes on both sides show which columns the heading spans.
std::string heading(const std::string& group, std::size_t width) {
  if (group.empty() || group.size() + 4 > width) return fmt::format("{:^{}}", group, width);
  return fmt::format("{:-^{}}", " " + group + " ", width);
}

}  // namespace

std::string table_text(const std::vector<Column>& columns, const std::vector<Cells>& rows) {
  const std::vector<std::size_t> widths = widths_of(columns, rows);
  const std::vector<Span> all = spans(columns, widths);
  const auto line = [&](const auto& text) {
    return joined(all, [&](std::size_t i) {
      return columns[i].align == Align::kLeft ? fmt::format("{:<{}}", text(i), widths[i])
                                              : fmt::format("{:>{}}", text(i), widths[i]);
    });
  };
  std::vector<Span> groups = all;
  for (Span& group : groups) group.last = group.first;
  std::string text = joined(groups, [&](std::size_t first) {
    return heading(columns[first].group, std::ranges::find(all, first, &Span::first)->width);
  });
  if (text == "\n") text.clear();
  text += line([&](std::size_t i) { return columns[i].header; });
  const std::string units = line([&](std::size_t i) { return columns[i].unit; });
  if (units != "\n") text += units;
  std::size_t total = 2 * (all.size() - 1);
  for (const Span& span : all) total += span.width;
  text += std::string(total, '-') + "\n";
  for (const Cells& row : rows) text += line([&](std::size_t i) { return row[i]; });
  return text;
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

}  // namespace zero::tools

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include <zero/base/error.hpp>
#include <zero/data/csv.hpp>
#include <zero/data/reviews.hpp>
#include <zero/data/text.hpp>

namespace zero::data {
namespace {

/// Where label and text stand, and how they are written.
struct Columns {
  std::size_t label = 0;
  std::size_t text = 1;
  std::int64_t lowest = 1;  // what the file writes for class 0
  bool header = false;
};

std::optional<std::int64_t> to_number(const std::string& field) {
  std::int64_t number = 0;
  const char* end = field.data() + field.size();
  const auto [stop, problem] = std::from_chars(field.data(), end, number);
  if (problem != std::errc() || stop != end) {
    return std::nullopt;
  }
  return number;
}

Columns find_columns(const CsvRow& first, const std::string& name) {
  if (to_number(first.fields[0])) {
    return {};
  }
  const auto column = [&](const char* title) {
    return static_cast<std::size_t>(std::ranges::find(first.fields, title) - first.fields.begin());
  };
  const std::size_t none = first.fields.size();
  Columns columns{column("label"), column("text"), /*lowest=*/0, /*header=*/true};
  if (columns.label == none) {
    columns.label = column("stars");
    columns.lowest = 1;
  }
  if (columns.label == none || columns.text == none) {
    throw Error(
        fmt::format("{}: the first line is neither a review (stars from 1 to 5, text) nor "
                    "a header with columns 'text' and 'label' or 'stars'",
                    name));
  }
  return columns;
}

std::string unescape_line_ends(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text.compare(i, 2, "\\n") == 0;
    plain += escaped ? '\n' : text[i];
    i += escaped ? 1 : 0;
  }
  return plain;
}

Record to_record(const CsvRow& row, const Columns& columns, std::size_t width,
                 const std::string& name, std::int64_t max_length) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{}, line {}: {}", name, row.line, why));
  };
  if (row.fields.size() != width) {
    refuse(fmt::format("{} columns, the first line has {}", row.fields.size(), width));
  }
  const std::string& label = row.fields[columns.label];
  const auto number = to_number(label);
  if (!number || *number < columns.lowest || *number >= columns.lowest + kReviewClasses) {
    refuse(fmt::format("'{}' is no label: {} to {} are", label, columns.lowest,
                       columns.lowest + kReviewClasses - 1));
  }
  std::string text = row.fields[columns.text];
  if (!columns.header) {
    text = unescape_line_ends(text);
  }
  if (text.empty()) {
    refuse("the review has no text");
  }
  if (max_length > 0) {
    text.resize(std::min(text.size(), static_cast<std::size_t>(max_length)));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {*number - columns.lowest, {bytes, bytes + text.size()}};
}

}  // namespace

Records reviews_from_csv(const std::filesystem::path& path, std::int64_t max_length) {
  const std::string name = fmt::format("reviews {}", path.string());
  if (max_length < 0) {
    throw Error(fmt::format("a longest review of {} bytes; 0 keeps reviews whole", max_length));
  }
  const std::vector<CsvRow> rows = parse_csv(read_text_file(path), name);
  if (rows.empty() || rows[0].fields.size() < 2) {
    throw Error(fmt::format("{}: a CSV file with label and text was expected", name));
  }
  const Columns columns = find_columns(rows[0], name);
  std::vector<Record> records;
  for (std::size_t i = columns.header ? 1 : 0; i < rows.size(); ++i) {
    records.push_back(to_record(rows[i], columns, rows[0].fields.size(), name, max_length));
  }
  if (records.empty()) {
    throw Error(fmt::format("{}: a header and no reviews", name));
  }
  return Records::from(records, kReviewClasses, kByteVocabulary);
}

}  // namespace zero::data

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/data/csv.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/reviews.hpp>
#include <zero/data/text.hpp>
#include <zero/data/token_file.hpp>

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

namespace {

using nlohmann::json;

// Numbers are written as 4, 4.0 or "4" by different programs.
std::optional<std::int64_t> to_number(const json& value) {
  double number = std::nan("");
  if (value.is_number()) {
    number = value.get<double>();
  } else if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (problem != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  }
  constexpr double kFar = 1e6;  // no label is; beyond, a double is not an int64
  if (!(std::abs(number) < kFar) || number != std::floor(number)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Record to_record(std::string_view line, const std::string& where, std::int64_t max_length) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{}: {}", where, why));
  };
  const json row = json::parse(line, base::bounded_depth(where), /*allow_exceptions=*/false);
  if (row.is_discarded()) refuse("not JSON");
  if (!row.is_object()) refuse("each line must be an object with label and text");
  const bool labelled = row.contains("label");
  const char* name = labelled ? "label" : "stars";
  const std::int64_t lowest = labelled ? 0 : 1;
  if (!row.contains(name) || !row.contains("text")) {
    refuse("'text' and 'label' (0 to 4) or 'stars' (1 to 5) are needed");
  }
  const auto number = to_number(row[name]);
  if (!number || *number < lowest || *number >= lowest + kReviewClasses) {
    refuse(fmt::format("{} is no label: {} to {} are", row[name].dump(), lowest,
                       lowest + kReviewClasses - 1));
  }
  if (!row["text"].is_string() || row["text"].get_ref<const std::string&>().empty()) {
    refuse("the review has no text");
  }
  std::string text = row["text"].get<std::string>();
  if (max_length > 0) text.resize(std::min(text.size(), static_cast<std::size_t>(max_length)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {*number - lowest, {bytes, bytes + text.size()}};
}

}  // namespace

Records reviews_from_json_lines(const std::filesystem::path& path, std::int64_t max_length) {
  if (max_length < 0) {
    throw Error(fmt::format("a longest review of {} bytes; 0 keeps reviews whole", max_length));
  }
  const std::string text = read_text_file(path);
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<Record> records;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("reviews {}, line {}", path.string(), number);
    records.push_back(to_record(line, where, max_length));
  }
  if (records.empty()) throw Error(fmt::format("reviews {}: no reviews", path.string()));
  return Records::from(records, kReviewClasses, kByteVocabulary);
}

Records reviews_from_file(const std::filesystem::path& path) {
  switch (file_kind(path)) {
    case FileKind::kTokens:
      return TokenFile(path).records();
    case FileKind::kJsonLines:
      return reviews_from_json_lines(path);
    case FileKind::kParquet:
      throw Error(fmt::format("{} is a Parquet file: make a token file of it first (./run data)",
                              path.string()));
    case FileKind::kText:
      break;
  }
  return reviews_from_csv(path);
}

}  // namespace zero::data

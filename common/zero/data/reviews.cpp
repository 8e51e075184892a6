#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/reviews.hpp>
#include <zero/data/token_file.hpp>

namespace zero::data {
namespace {

using nlohmann::json;

class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& name) : text_(text), name_(name) {
    skip("\xEF\xBB\xBF");
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (!text_.empty()) {
      if (end_line()) continue;
      rows.push_back({line_, {}});
      do {
        rows.back().fields.push_back(skip("\"") ? quoted() : plain());
      } while (skip(","));
      if (!text_.empty() && !end_line()) refuse(line_, "text after the closing quote of a field");
    }
    return rows;
  }

 private:
  [[noreturn]] void refuse(std::int64_t line, const std::string& why) const {
    throw Error(fmt::format("{}, line {}: {}", name_, line, why));
  }

  bool skip(std::string_view what) {
    if (!text_.starts_with(what)) return false;
    text_.remove_prefix(what.size());
    return true;
  }

  bool end_line() {
    const bool ends = skip("\n") || skip("\r\n");
    line_ += ends ? 1 : 0;
    return ends;
  }

  std::string plain() {
    const std::size_t end = std::min(text_.find_first_of(",\n"), text_.size());
    std::string_view field = text_.substr(0, end);
    if (text_.substr(end).starts_with('\n') && field.ends_with('\r')) field.remove_suffix(1);
    if (field.find('"') != std::string_view::npos) {
      refuse(line_,
             "a double quote inside a field that does not start with one; quote the whole "
             "field and double the quotes in it");
    }
    text_.remove_prefix(field.size());
    return std::string(field);
  }

  // After the opening quote.
  std::string quoted() {
    const std::int64_t opened = line_;
    std::string field;
    while (!text_.empty()) {
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == '"' && !skip("\"")) return field;
      line_ += c == '\n' ? 1 : 0;
      field += c;
    }
    refuse(opened, "a quoted field that is never closed");
  }

  std::string_view text_;  // not read yet
  const std::string& name_;
  std::int64_t line_ = 1;
};

// NaN if the text is not a number. Accepts 4.0 as well as 4.
double to_number(std::string_view text) {
  double number = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = problem == std::errc() && stop == text.data() + text.size();
  return whole ? number : std::numeric_limits<double>::quiet_NaN();
}

// `lowest` is the file's label of class 0.
Record to_record(std::string_view label, const std::string& text, int lowest,
                 const std::string& where) {
  const double number = to_number(label) - lowest;
  if (!(number >= 0 && number < kReviewClasses) || number != std::floor(number)) {
    throw Error(fmt::format("{}: '{}' is no label: {} to {} are", where, label, lowest,
                            lowest + kReviewClasses - 1));
  }
  if (text.empty()) throw Error(fmt::format("{}: the review has no text", where));
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {static_cast<std::int64_t>(number), {bytes, bytes + text.size()}};
}

// Which columns of a CSV file hold label and text, and their format.
struct Columns {
  std::size_t label = 0;
  std::size_t text = 1;
  int lowest = 1;
  bool header = false;
};

Columns find_columns(const CsvRow& first, const std::string& name) {
  if (!std::isnan(to_number(first.fields[0]))) return {};
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

std::string unescape_line_ends(std::string text) {
  for (std::size_t at = 0; (at = text.find("\\n", at)) != std::string::npos; ++at) {
    text.replace(at, 2, 1, '\n');
  }
  return text;
}

Record to_record(std::string_view line, const std::string& where) {
  const auto refuse = [&](const char* why) { throw Error(fmt::format("{}: {}", where, why)); };
  // A byte order mark at the start of the file is skipped here.
  const json row = json::parse(line, base::bounded_depth(where), /*allow_exceptions=*/false);
  if (row.is_discarded()) refuse("not JSON");
  if (!row.is_object()) refuse("each line must be an object with label and text");
  const char* name = row.contains("label") ? "label" : "stars";
  if (!row.contains(name) || !row.contains("text")) {
    refuse("'text' and 'label' (0 to 4) or 'stars' (1 to 5) are needed");
  }
  const json& label = row[name];
  return to_record(label.is_string() ? label.get<std::string>() : label.dump(),
                   row["text"].is_string() ? row["text"].get<std::string>() : "",
                   name[0] == 'l' ? 0 : 1, where);
}

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& name) {
  return CsvParser(text, name).rows();
}

Records reviews_from_csv(const std::filesystem::path& path) {
  const std::string name = fmt::format("reviews {}", path.string());
  const std::vector<CsvRow> rows = parse_csv(base::read_file(path, name), name);
  if (rows.empty() || rows[0].fields.size() < 2) {
    throw Error(fmt::format("{}: a CSV file with label and text was expected", name));
  }
  const Columns columns = find_columns(rows[0], name);
  std::vector<Record> records;
  for (std::size_t i = columns.header ? 1 : 0; i < rows.size(); ++i) {
    const std::vector<std::string>& fields = rows[i].fields;
    const std::string where = fmt::format("{}, line {}", name, rows[i].line);
    if (fields.size() != rows[0].fields.size()) {
      throw Error(fmt::format("{}: {} columns, the first line has {}", where, fields.size(),
                              rows[0].fields.size()));
    }
    const std::string& text = fields[columns.text];
    records.push_back(to_record(fields[columns.label],
                                columns.header ? text : unescape_line_ends(text), columns.lowest,
                                where));
  }
  if (records.empty()) throw Error(fmt::format("{}: a header and no reviews", name));
  return Records::from(records, kReviewClasses, kByteVocabulary);
}

Records reviews_from_json_lines(const std::filesystem::path& path) {
  std::istringstream lines(base::read_file(path, fmt::format("reviews {}", path.string())));
  std::vector<Record> records;
  std::string line;
  for (std::int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    records.push_back(to_record(line, fmt::format("reviews {}, line {}", path.string(), number)));
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

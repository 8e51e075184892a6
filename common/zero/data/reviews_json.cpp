#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/reviews.hpp>
#include <zero/data/text.hpp>
#include <zero/data/tokens.hpp>

namespace zero::data {
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

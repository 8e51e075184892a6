#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <zero/data/token_stream.hpp>

namespace zero::data {

/// Classes of a review: 0 (one star) to 4 (five stars).
inline constexpr std::int64_t kReviewClasses = 5;

/// One row of a CSV file.
struct CsvRow {
  std::int64_t line = 0;  ///< line of the file on which the row starts, from 1, for messages
  std::vector<std::string> fields;
};

/// Splits CSV text as RFC 4180 specifies: fields are separated by commas; a field in double quotes
/// may hold commas, line ends and doubled double quotes. Rows end with LF or CR LF. Skips empty
/// lines and a UTF-8 byte order mark at the start.
/// @param text the whole file
/// @param name name of the text in messages, usually its path
/// @throws zero::Error with the line of a quote that is never closed, that starts in the middle of
///   a field, or that is followed by more text.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& name);

/// Reads reviews from CSV as bytes (vocabulary 256, pad id 0), in file order, for --task reviews
/// without a tokenizer. prepare.py reads the same forms, and more, with a tokenizer.
///
/// Two forms are accepted:
/// - with a header line that names a column `text` and a column `label` (0 to 4) or `stars` (1 to
///   5), in any order; other columns are ignored, and text is not changed;
/// - without a header, as Yelp Review Full is distributed: stars 1 to 5, then the text, in which a
///   backslash followed by n stands for a line end.
///
/// @param path of the file
/// @throws zero::Error with path and line if the file is missing, empty or not such a CSV.
Records reviews_from_csv(const std::filesystem::path& path);

/// The same from JSON lines: one object per line with `text` and `label` (0 to 4) or `stars` (1 to
/// 5). Other keys and empty lines are ignored, and text is not changed.
/// @throws zero::Error with path and line if the file is missing, empty or not such lines.
Records reviews_from_json_lines(const std::filesystem::path& path);

/// Reviews from a file of any kind (see file_kind()): a token file of records, JSON lines, or CSV.
/// The first has the vocabulary of its tokenizer, the others are read as bytes.
/// @throws zero::Error as TokenFile and the two functions above, and for Parquet.
Records reviews_from_file(const std::filesystem::path& path);

}  // namespace zero::data

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::data {

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

}  // namespace zero::data

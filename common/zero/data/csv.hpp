#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::data {

/// One row of a CSV file.
struct CsvRow {
  std::int64_t line = 0;  ///< line of the file that it starts on, from 1, for messages
  std::vector<std::string> fields;
};

/// Splits CSV text as RFC 4180 lays it down: fields are separated by commas, a field in double
/// quotes may hold commas, line ends and doubled double quotes. Rows end with LF or CR LF; empty
/// lines and a UTF-8 byte order mark at the start are passed over.
/// @param text the whole file
/// @param name what messages call the text, as a rule its path
/// @throws zero::Error with the line of a quote that is never closed, that starts in the middle of
///   a field, or that is followed by more text.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& name);

}  // namespace zero::data

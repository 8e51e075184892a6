#pragma once

#include <filesystem>

#include <zero/data/token_stream.hpp>

namespace zero::data {

/// Classes of a review: 0 (one star) to 4 (five stars).
inline constexpr std::int64_t kReviewClasses = 5;

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

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "token_stream.hpp"

namespace zero::data {

/// The files that `names` stand for, in a fixed order: names as given, files of a name by path.
///
/// A name is a file; a folder, which stands for every *.txt and *.md below it (except hidden files
/// and folders, whose names start with a dot); or a shell pattern such as "corpus/part-*.txt" (see
/// glob(7)), in which matching folders count as above.
/// @throws zero::Error for a name that stands for no file.
std::vector<std::filesystem::path> text_files(const std::vector<std::string>& names);

/// The bytes of text_files(names), one file after the other with nothing between: token ids 0 to
/// 255. Every rank that needs the text reads it itself.
/// @throws zero::Error if a file is missing, empty, unreadable or a token file, even a damaged one
/// (see is_token_file()), or if no name is given.
TokenStream text_from_files(const std::vector<std::string>& names);

/// The project's own prose as training text: below `root` the *.md of the root itself, of docs/,
/// and of the chapters (folders whose name starts with two digits and an underscore). Files are
/// sorted by the bytes of their path below `root`, so the same files give the same tokens on every
/// machine.
/// @throws zero::Error if `root` is no folder or has no such file.
TokenStream project_text(const std::filesystem::path& root);

}  // namespace zero::data

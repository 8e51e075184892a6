#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "token_stream.hpp"

namespace zero::data {

/// The bytes of the files `names`, one after the other with nothing between: token ids 0 to 255. A
/// folder stands for every *.txt and *.md below it by path, except hidden files and folders, whose
/// names start with a dot. Every rank that needs the text reads it itself.
/// @throws zero::Error if a file is missing, empty, unreadable or a token file, even a damaged one
/// (see is_token_file()), or if a folder has no such file.
TokenStream text_from_files(const std::vector<std::string>& names);

/// The project's own prose as training text: below `root` the *.md of the root itself, of docs/,
/// and of the chapters (folders whose name starts with two digits and an underscore). Files are
/// sorted by the bytes of their path below `root`, so the same files give the same tokens on every
/// machine.
/// @throws zero::Error if `root` is no folder or has no such file.
TokenStream project_text(const std::filesystem::path& root);

}  // namespace zero::data

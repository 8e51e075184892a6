#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>

namespace zero::data {
namespace {

// Long enough for the first line of a file of reviews; a longer first line counts as text.
constexpr std::size_t kLookedAt = std::size_t{1} << 20;

// Throws for a token file whose first bytes were damaged: read as text, its bytes would be trained
// on. No text has the header's zeros.
void refuse_damaged_tokens(const std::filesystem::path& path, std::string_view text) {
  constexpr std::string_view kWord = "ZEROTOK";
  TokenHeader header{};
  if (text.size() >= sizeof(header)) std::memcpy(&header, text.data(), sizeof(header));
  const bool records = header.kind == static_cast<std::uint32_t>(TokenKind::kRecords);
  const bool stream = header.kind == static_cast<std::uint32_t>(TokenKind::kStream);
  const bool has_header = header.header_bytes == sizeof(header) && (records || stream) &&
                          (header.id_bytes == 2 || header.id_bytes == 4);
  const bool has_name = path.extension() == ".tokens";
  if (!has_header && !has_name && !text.starts_with(kWord)) return;
  throw Error(
      fmt::format("file {} {}, but does not begin with {} and a line feed: it is damaged, make it "
                  "again (./run data){}",
                  path.string(),
                  has_name ? "is called .tokens like a token file" : "is laid out as a token file",
                  kWord, has_name && !has_header ? "; text needs another name" : ""));
}

bool begins_with_an_object(std::string_view text) {
  // A byte order mark may come first.
  text.remove_prefix(std::min(text.find_first_not_of("\xEF\xBB\xBF \t\r\n"), text.size()));
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.starts_with('{') && nlohmann::json::accept(line);
}

}  // namespace

FileKind file_kind(const std::filesystem::path& path) {
  const base::MappedFile file(path, fmt::format("file {}", path.string()));
  const std::string_view text = file.bytes().substr(0, kLookedAt);
  if (text.starts_with(std::string_view(kTokenMagic, sizeof(kTokenMagic)))) {
    return FileKind::kTokens;
  }
  if (text.starts_with("PAR1")) return FileKind::kParquet;
  refuse_damaged_tokens(path, text);
  return begins_with_an_object(text) ? FileKind::kJsonLines : FileKind::kText;
}

}  // namespace zero::data

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include <zero/base/error.hpp>
#include <zero/data/file_kind.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>

namespace zero::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
// Long enough for the first line of a file of reviews; a longer first line counts as text.
constexpr std::size_t kLookedAt = std::size_t{1} << 20;

std::string beginning_of(const std::filesystem::path& path) {
  const auto refuse = [&](const char* why) {
    throw Error(fmt::format("file {} {}", path.string(), why));
  };
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) refuse("does not exist");
  if (!std::filesystem::is_regular_file(path, ignored)) refuse("is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("cannot be read; check its permissions");
  std::string text(kLookedAt, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.empty()) refuse("is empty");
  return text;
}

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
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.starts_with('{') && nlohmann::json::accept(line);
}

}  // namespace

FileKind file_kind(const std::filesystem::path& path) {
  const std::string text = beginning_of(path);
  if (text.starts_with(std::string_view(kTokenMagic, sizeof(kTokenMagic)))) {
    return FileKind::kTokens;
  }
  if (text.starts_with("PAR1")) return FileKind::kParquet;
  refuse_damaged_tokens(path, text);
  return begins_with_an_object(text) ? FileKind::kJsonLines : FileKind::kText;
}

}  // namespace zero::data

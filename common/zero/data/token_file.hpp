#pragma once

#include <cstdint>
#include <filesystem>

#include <zero/data/token_stream.hpp>

namespace zero::data {

/// The content of a token file; the values are those in the file.
enum class TokenKind : std::uint32_t {
  kStream = 1,   ///< one run of tokens, for language modelling
  kRecords = 2,  ///< labelled texts, for classification
};

/// Format version that this build reads and writes. The bytes are laid out in docs/token-files.md.
inline constexpr std::uint32_t kTokenFileVersion = 1;

/// A token file, mapped into memory and checked. Its pages are not allocated by this process, and
/// ranks on one machine share one copy.
///
/// Opening checks the whole file (SHA-256 of header and payload, every id below the vocabulary),
/// then releases the pages, so the resident set holds only what is used later. The mapping lives as
/// long as this object or any stream or records taken from it. Replace a file in use by renaming
/// another over it, as prepare.py does; truncating it ends the program.
///
/// Any rank may open a file at any time; nothing is communicated.
class TokenFile {
 public:
  /// Opens, maps and checks `path`.
  /// @throws zero::Error with the path and the reason if the file is missing, empty, not a token
  ///   file, of another version, shorter or longer than its header says, damaged (checksum), or
  ///   inconsistent (ids, labels or offsets out of range).
  explicit TokenFile(const std::filesystem::path& path);

  TokenKind kind() const { return kind_; }

  /// Labelled texts. @throws zero::Error if the file holds a stream.
  const Records& records() const;

  /// The tokens of a language-model corpus. @throws zero::Error if the file holds records.
  const TokenStream& stream() const;

 private:
  std::filesystem::path path_;
  TokenKind kind_ = TokenKind::kStream;
  Records records_;  // for a stream only the tokens are set
};

}  // namespace zero::data

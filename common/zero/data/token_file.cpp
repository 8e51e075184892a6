#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>

namespace zero::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw Error(fmt::format("token file {}: {}", path.string(), why));
}

TokenHeader read_header(const std::filesystem::path& path, const base::MappedFile& file) {
  TokenHeader header;
  const std::string_view bytes = file.bytes();
  if (std::memcmp(bytes.data(), kTokenMagic, std::min(bytes.size(), sizeof(kTokenMagic))) != 0) {
    refuse(path, "is not a token file (make one with tools/data/prepare.py)");
  }
  if (bytes.size() < sizeof(header)) {
    refuse(path, fmt::format("is cut short: {} bytes, the header alone has {}", bytes.size(),
                             sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != kTokenFileVersion) {
    refuse(path, fmt::format("has format version {}, this program reads version {}", header.version,
                             kTokenFileVersion));
  }
  const base::Digest found =
      base::Sha256().add(&header, offsetof(TokenHeader, header_digest)).digest();
  if (found != header.header_digest) {
    refuse(path, "is damaged: the checksum of its header does not match");
  }
  return header;
}

/// Checks header fields that no correct writer produces, whatever the payload.
void check_fields(const std::filesystem::path& path, const TokenHeader& header) {
  if (header.header_bytes != sizeof(header) || header.reserved != 0) {
    refuse(path, fmt::format("states a header of {} bytes with a reserved field of {}; version {} "
                             "has {} and 0",
                             header.header_bytes, header.reserved, header.version, sizeof(header)));
  }
  if (header.id_bytes != 2 && header.id_bytes != 4) {
    refuse(path, fmt::format("has ids of {} bytes; 2 and 4 are known", header.id_bytes));
  }
  const std::uint64_t room = header.id_bytes == 2 ? std::uint64_t{1} << 16 : kLargestVocabulary;
  if (header.vocabulary < 1 || header.vocabulary > room) {
    refuse(path, fmt::format("states a vocabulary of {}; ids of {} bytes allow 1 to {}",
                             header.vocabulary, header.id_bytes, room));
  }
  if (header.token_count < 1) refuse(path, "holds no tokens");
  if (header.pad_id < -1 || header.pad_id >= static_cast<std::int64_t>(header.vocabulary)) {
    refuse(path, fmt::format("states pad id {}; it must be -1 for none or below the vocabulary {}",
                             header.pad_id, header.vocabulary));
  }
  const bool records = header.kind == static_cast<std::uint32_t>(TokenKind::kRecords);
  if (!records && header.kind != static_cast<std::uint32_t>(TokenKind::kStream)) {
    refuse(path, fmt::format("is of kind {}; 1 (stream) and 2 (records) are known", header.kind));
  }
  if (records != (header.record_count > 0) || records != (header.classes > 0)) {
    refuse(path, fmt::format("of kind {} states {} records in {} classes; a stream has 0 of both, "
                             "records at least 1 of both",
                             header.kind, header.record_count, header.classes));
  }
}

std::uint64_t offset_entries(const TokenHeader& header) {
  return header.record_count == 0 ? 0 : header.record_count + 1;
}

void check_size(const std::filesystem::path& path, const TokenHeader& header,
                std::uint64_t file_size) {
  // Compared before multiplication: a false count must not overflow.
  if (header.token_count > file_size || header.record_count > file_size) {
    refuse(path, fmt::format("is cut short or lies: {} bytes cannot hold {} tokens in {} records",
                             file_size, header.token_count, header.record_count));
  }
  const std::uint64_t expected = sizeof(header) + offset_entries(header) * kOffsetBytes +
                                 header.record_count * kLabelBytes +
                                 header.token_count * header.id_bytes;
  if (file_size != expected) {
    refuse(path, fmt::format("has {} bytes, its header says {}: {}", file_size, expected,
                             file_size < expected ? "it is cut short" : "something was added"));
  }
}

void check_ids(const std::filesystem::path& path, const TokenStream& tokens,
               const base::MappedFile& file) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 21;  // ids read before pages are released
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(kPiece, tokens.size())));
  for (std::int64_t at = 0; at < tokens.size(); at += kPiece) {
    ids.resize(static_cast<std::size_t>(std::min(kPiece, tokens.size() - at)));
    tokens.copy(at, ids);
    const auto outside =
        std::ranges::find_if(ids, [&](std::int64_t id) { return id >= tokens.vocabulary(); });
    if (outside != ids.end()) {
      refuse(path, fmt::format("has token id {} at place {}, outside its vocabulary of {}",
                               *outside, at + (outside - ids.begin()), tokens.vocabulary()));
    }
    file.forget(file.bytes());
  }
}

void check_records(const std::filesystem::path& path, const Records& records) {
  const auto& offsets = records.offsets;
  if (offsets.front() != 0 || offsets.back() != static_cast<std::uint64_t>(records.tokens.size())) {
    refuse(path, fmt::format("has records from token {} to {}, they must span 0 to {}",
                             offsets.front(), offsets.back(), records.tokens.size()));
  }
  for (std::size_t i = 0; i < records.labels.size(); ++i) {
    if (offsets[i + 1] <= offsets[i]) {
      refuse(path, fmt::format("has record {} from token {} to {}: no tokens", i, offsets[i],
                               offsets[i + 1]));
    }
    if (records.labels[i] >= static_cast<std::uint64_t>(records.classes)) {
      refuse(path, fmt::format("has label {} on record {}, outside its {} classes",
                               records.labels[i], i, records.classes));
    }
  }
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path) {
  const auto file =
      std::make_shared<const base::MappedFile>(path, fmt::format("token file {}", path.string()));
  const TokenHeader header = read_header(path, *file);
  check_fields(path, header);
  check_size(path, header, file->bytes().size());

  const char* payload = file->bytes().data() + sizeof(header);
  if (file->sha256(sizeof(header)) != header.payload_digest) {
    refuse(path, "is damaged: the checksum of its tokens does not match");
  }

  kind_ = static_cast<TokenKind>(header.kind);
  const char* labels = payload + offset_entries(header) * kOffsetBytes;
  const char* ids = labels + header.record_count * kLabelBytes;
  records_.tokens = TokenStream(
      file, ids, static_cast<int>(header.id_bytes), static_cast<std::int64_t>(header.token_count),
      static_cast<std::int64_t>(header.vocabulary), base::to_hex(header.tokenizer));
  check_ids(path, records_.tokens, *file);
  if (kind_ == TokenKind::kRecords) {
    // Aligned: the header's size is a multiple of 8 and the mapping starts on a page.
    records_.offsets = {reinterpret_cast<const std::uint64_t*>(payload), offset_entries(header)};
    records_.labels = {reinterpret_cast<const std::uint32_t*>(labels), header.record_count};
    records_.classes = header.classes;
    records_.pad_id = std::max<std::int64_t>(header.pad_id, 0);
    records_.owner = file;
    check_records(path, records_);
  }
  file->forget(file->bytes());
}

const Records& TokenFile::records() const {
  if (kind_ != TokenKind::kRecords) {
    refuse(path_, "holds a stream of text; labelled records are needed here");
  }
  return records_;
}

const TokenStream& TokenFile::stream() const {
  if (kind_ != TokenKind::kStream) {
    refuse(path_, "holds labelled records; a stream of text is needed here");
  }
  return records_.tokens;
}

}  // namespace zero::data

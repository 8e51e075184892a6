#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>

namespace zero::data {
namespace {

/// Bytes of a file that are read before their pages are released.
constexpr std::size_t kPiece = std::size_t{16} << 20;

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
  if (header.token_count < 1) {
    refuse(path, "holds no tokens");
  }
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

std::uint64_t file_bytes(const TokenHeader& header) {
  return sizeof(TokenHeader) + offset_entries(header) * kOffsetBytes +
         header.record_count * kLabelBytes + header.token_count * header.id_bytes;
}

void check_size(const std::filesystem::path& path, const TokenHeader& header,
                std::uint64_t file_size) {
  // Compared before multiplication: a false count must not overflow.
  if (header.token_count > file_size || header.record_count > file_size) {
    refuse(path, fmt::format("is cut short or lies: {} bytes cannot hold {} tokens in {} records",
                             file_size, header.token_count, header.record_count));
  }
  const std::uint64_t expected = file_bytes(header);
  if (file_size != expected) {
    refuse(path, fmt::format("has {} bytes, its header says {}: {}", file_size, expected,
                             file_size < expected ? "it is cut short" : "something was added"));
  }
}

base::Digest payload_digest(const base::MappedFile& file) {
  base::Sha256 hash;
  for (std::size_t at = sizeof(TokenHeader); at < file.bytes().size(); at += kPiece) {
    const std::string_view piece = file.bytes().substr(at, kPiece);
    hash.add(piece.data(), piece.size());
    file.forget(piece);
  }
  return hash.digest();
}

void check_ids(const std::filesystem::path& path, const TokenStream& tokens,
               const base::MappedFile& file) {
  const auto most = static_cast<std::int64_t>(kPiece / sizeof(std::int64_t));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(most, tokens.size())));
  for (std::int64_t at = 0; at < tokens.size(); at += most) {
    ids.resize(static_cast<std::size_t>(std::min(most, tokens.size() - at)));
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
  if (payload_digest(*file) != header.payload_digest) {
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

namespace {

/// Writes pieces of the payload and computes its checksum.
struct Payload {
  base::AtomicFile& file;
  base::Sha256 hash = {};
  std::int64_t at = sizeof(TokenHeader);

  void add(const void* data, std::size_t size) {
    hash.add(data, size);
    file.write(data, static_cast<std::int64_t>(size), at);
    at += static_cast<std::int64_t>(size);
  }
};

template <typename T>
void add_ids(Payload& payload, const TokenStream& tokens, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> wide(4096);
  std::vector<T> narrow(wide.size());
  while (begin < end) {
    const auto count = std::min(wide.size(), static_cast<std::size_t>(end - begin));
    tokens.copy(begin, {wide.data(), count});
    for (std::size_t i = 0; i < count; ++i) {
      narrow[i] = static_cast<T>(wide[i]);
    }
    payload.add(narrow.data(), count * sizeof(T));
    begin += static_cast<std::int64_t>(count);
  }
}

TokenHeader header_for(TokenKind kind, const TokenStream& tokens, std::int64_t token_count) {
  TokenHeader header{};
  std::memcpy(header.magic, kTokenMagic, sizeof(kTokenMagic));
  header.version = kTokenFileVersion;
  header.header_bytes = sizeof(header);
  header.kind = static_cast<std::uint32_t>(kind);
  header.id_bytes = tokens.vocabulary() <= 1 << 16 ? 2 : 4;
  header.vocabulary = static_cast<std::uint64_t>(tokens.vocabulary());
  header.token_count = static_cast<std::uint64_t>(token_count);
  header.pad_id = -1;
  header.tokenizer = base::digest_from_hex(tokens.tokenizer_fingerprint());
  return header;
}

/// Writes the ids, completes the payload, and then writes the header, which is known only now.
void finish(Payload& payload, TokenHeader header, const TokenStream& tokens, std::int64_t begin,
            std::int64_t end) {
  if (header.id_bytes == 2) {
    add_ids<std::uint16_t>(payload, tokens, begin, end);
  } else {
    add_ids<std::uint32_t>(payload, tokens, begin, end);
  }
  header.payload_digest = payload.hash.digest();
  header.header_digest = base::Sha256().add(&header, offsetof(TokenHeader, header_digest)).digest();
  payload.file.write(&header, sizeof(header), 0);
  payload.file.complete();
  payload.file.publish();
}

}  // namespace

void write_token_file(const std::filesystem::path& path, const TokenStream& stream) {
  if (stream.size() == 0) {
    throw Error(
        fmt::format("token file {}: nothing to write, the text has no tokens", path.string()));
  }
  const TokenHeader header = header_for(TokenKind::kStream, stream, stream.size());
  base::AtomicFile file(path, static_cast<std::int64_t>(file_bytes(header)));
  Payload payload{file};
  finish(payload, header, stream, 0, stream.size());
}

void write_token_file(const std::filesystem::path& path, const Records& records) {
  if (records.size() == 0) {
    throw Error(
        fmt::format("token file {}: nothing to write, there are no records", path.string()));
  }
  // A slice of records starts in the middle of its tokens; the file starts at 0.
  const std::uint64_t first = records.offsets.front();
  std::vector<std::uint64_t> offsets(records.offsets.begin(), records.offsets.end());
  for (auto& offset : offsets) {
    offset -= first;
  }
  TokenHeader header =
      header_for(TokenKind::kRecords, records.tokens, static_cast<std::int64_t>(offsets.back()));
  header.record_count = static_cast<std::uint64_t>(records.size());
  header.classes = static_cast<std::uint32_t>(records.classes);
  header.pad_id = records.pad_id;
  base::AtomicFile file(path, static_cast<std::int64_t>(file_bytes(header)));
  Payload payload{file};
  payload.add(offsets.data(), offsets.size() * kOffsetBytes);
  payload.add(records.labels.data(), records.labels.size_bytes());
  finish(payload, header, records.tokens, static_cast<std::int64_t>(first),
         static_cast<std::int64_t>(records.offsets.back()));
}

}  // namespace zero::data

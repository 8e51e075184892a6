#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/data/token_header.hpp>
#include <zero/data/tokens.hpp>

namespace zero::data {
namespace {

/// A file that appears under its name when commit() is called, and not at all otherwise.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path)
      : path_(path), partial_(fmt::format("{}.{}.partial", path.string(), ::getpid())) {
    file_ = std::fopen(partial_.c_str(), "wb");
    if (file_ == nullptr) {
      fail();
    }
  }
  ~AtomicFile() {
    if (file_ != nullptr) {
      std::fclose(file_);
      std::remove(partial_.c_str());
    }
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t size) {
    if (std::fwrite(data, 1, size, file_) != size) {
      fail();
    }
  }
  void rewind() { std::rewind(file_); }

  void commit() {
    if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) {
      fail();
    }
    if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
      fail();
    }
    std::fclose(file_);
    file_ = nullptr;
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }

  std::filesystem::path path_;
  std::string partial_;
  std::FILE* file_ = nullptr;
};

/// Writes payload pieces and keeps their checksum.
struct Payload {
  AtomicFile& file;
  base::Sha256 hash;

  void add(const void* data, std::size_t size) {
    hash.add(data, size);
    file.write(data, size);
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

/// Writes ids, closes the payload, and puts the header, now known, in front.
void finish(AtomicFile& file, Payload& payload, TokenHeader header, const TokenStream& tokens,
            std::int64_t begin, std::int64_t end) {
  if (header.id_bytes == 2) {
    add_ids<std::uint16_t>(payload, tokens, begin, end);
  } else {
    add_ids<std::uint32_t>(payload, tokens, begin, end);
  }
  header.payload_digest = payload.hash.digest();
  header.header_digest = base::Sha256().add(&header, offsetof(TokenHeader, header_digest)).digest();
  file.rewind();
  file.write(&header, sizeof(header));
  file.commit();
}

}  // namespace

void write_token_file(const std::filesystem::path& path, const TokenStream& stream) {
  if (stream.size() == 0) {
    throw Error(
        fmt::format("token file {}: nothing to write, the text has no tokens", path.string()));
  }
  const TokenHeader header = header_for(TokenKind::kStream, stream, stream.size());
  AtomicFile file(path);
  file.write(&header, sizeof(header));
  Payload payload{file, {}};
  finish(file, payload, header, stream, 0, stream.size());
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
  AtomicFile file(path);
  file.write(&header, sizeof(header));
  Payload payload{file, {}};
  payload.add(offsets.data(), offsets.size() * kOffsetBytes);
  payload.add(records.labels.data(), records.labels.size_bytes());
  finish(file, payload, header, records.tokens, static_cast<std::int64_t>(first),
         static_cast<std::int64_t>(records.offsets.back()));
}

}  // namespace zero::data

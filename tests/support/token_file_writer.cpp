#include "token_file_writer.hpp"

#include <cstddef>
#include <cstring>
#include <string>

#include <zero/base/atomic_file.hpp>
#include <zero/base/sha256.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>

#include "records.hpp"

namespace zero::testing {
namespace {

template <typename Numbers>
void append(std::string& bytes, const Numbers& numbers) {
  bytes.append(reinterpret_cast<const char*>(numbers.data()),
               numbers.size() * sizeof(numbers.front()));
}

template <typename T>
void append_ids(std::string& bytes, const data::TokenStream& tokens) {
  const std::vector<std::int64_t> ids = ids_of(tokens);
  append(bytes, std::vector<T>(ids.begin(), ids.end()));
}

data::TokenHeader header_for(data::TokenKind kind, const data::TokenStream& tokens) {
  data::TokenHeader header{};
  std::memcpy(header.magic, data::kTokenMagic, sizeof(header.magic));
  header.version = data::kTokenFileVersion;
  header.header_bytes = sizeof(header);
  header.kind = static_cast<std::uint32_t>(kind);
  header.id_bytes = tokens.vocabulary() <= 1 << 16 ? 2 : 4;
  header.vocabulary = static_cast<std::uint64_t>(tokens.vocabulary());
  header.token_count = static_cast<std::uint64_t>(tokens.size());
  header.pad_id = -1;
  for (std::size_t i = 0; i < header.tokenizer.size(); ++i) {
    const std::string digits = tokens.tokenizer_fingerprint().substr(2 * i, 2);
    header.tokenizer[i] = static_cast<std::uint8_t>(std::stoul(digits, nullptr, 16));
  }
  return header;
}

// `payload` is all that comes before the ids.
void write(const std::filesystem::path& path, data::TokenHeader header, std::string payload,
           const data::TokenStream& tokens) {
  if (header.id_bytes == 2) {
    append_ids<std::uint16_t>(payload, tokens);
  } else {
    append_ids<std::uint32_t>(payload, tokens);
  }
  header.payload_digest = base::Sha256().add(payload).digest();
  header.header_digest =
      base::Sha256().add(&header, offsetof(data::TokenHeader, header_digest)).digest();
  const std::string begin(reinterpret_cast<const char*>(&header), sizeof(header));
  base::write_file(path, begin + payload);
}

}  // namespace

void write_token_file(const std::filesystem::path& path, const data::TokenStream& stream) {
  write(path, header_for(data::TokenKind::kStream, stream), "", stream);
}

void write_token_file(const std::filesystem::path& path, const data::Records& records) {
  data::TokenHeader header = header_for(data::TokenKind::kRecords, records.tokens);
  header.record_count = static_cast<std::uint64_t>(records.size());
  header.classes = static_cast<std::uint32_t>(records.classes);
  header.pad_id = records.pad_id;
  std::string payload;
  append(payload, records.offsets);
  append(payload, records.labels);
  write(path, header, payload, records.tokens);
}

}  // namespace zero::testing

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <zero/base/sha256.hpp>

namespace zero::data {

/// The header of a token file as stored on disk; docs/token-files.md explains every field. Natural
/// alignment leaves no padding, so the struct is the layout.
struct TokenHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t kind;
  std::uint32_t id_bytes;
  std::uint64_t vocabulary;
  std::uint64_t token_count;
  std::uint64_t record_count;
  std::uint32_t classes;
  std::uint32_t reserved;
  std::int64_t pad_id;
  base::Digest tokenizer;
  base::Digest payload_digest;
  base::Digest header_digest;
};

static_assert(sizeof(TokenHeader) == 160, "the documented size");
static_assert(offsetof(TokenHeader, header_digest) == 128, "the documented place");
static_assert(std::endian::native == std::endian::little, "token files are read in place");

inline constexpr char kTokenMagic[8] = {'Z', 'E', 'R', 'O', 'T', 'O', 'K', '\n'};

/// Bytes of a label and of an offset in a file of records.
inline constexpr std::uint64_t kLabelBytes = 4;
inline constexpr std::uint64_t kOffsetBytes = 8;

}  // namespace zero::data

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::ids_of;
using testing::kSomeTokenizer;
using testing::mentions;
using testing::read_bytes;
using testing::TestFolder;
using testing::three_records;

/// The bytes of a small valid file of each kind.
std::string stream_bytes(const TestFolder& folder) {
  const std::vector<std::int64_t> ids{1, 2, 999, 4};
  write_token_file(folder / "s", TokenStream::from_ids(ids, 1000, kSomeTokenizer));
  return read_bytes(folder / "s");
}

std::string record_bytes(const TestFolder& folder) {
  write_token_file(folder / "r", three_records());
  return read_bytes(folder / "r");
}

template <typename T>
void put(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

/// Makes both checksums right again: what is left wrong is a lie of the writer, not damage.
std::string sign(std::string bytes) {
  const base::Digest payload = base::Sha256().add(bytes.data() + 160, bytes.size() - 160).digest();
  std::memcpy(bytes.data() + 96, payload.data(), payload.size());
  const base::Digest header = base::Sha256().add(bytes.data(), 128).digest();
  std::memcpy(bytes.data() + 128, header.data(), header.size());
  return bytes;
}

std::string refusal(const TestFolder& folder, const std::string& bytes) {
  const auto path = folder.write("tried", bytes);
  return error_of([&] { TokenFile{path}; });
}

/// refusal() of a file in which one field was replaced and which was then signed again.
template <typename T>
std::string lie(const TestFolder& folder, std::string bytes, std::size_t at, T value) {
  put(bytes, at, value);
  return refusal(folder, sign(bytes));
}

TEST(TokenFile, RoundTripOfStreams) {
  const TestFolder folder;
  for (const std::int64_t vocabulary : {256, 65536, 65537}) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 10'000; ++i) {
      ids.push_back(i * 7919 % vocabulary);
    }
    ids.push_back(vocabulary - 1);
    const auto written = TokenStream::from_ids(ids, vocabulary, kSomeTokenizer);
    write_token_file(folder / "t", written);
    EXPECT_EQ(std::filesystem::file_size(folder / "t"),
              160 + ids.size() * (vocabulary <= 65536 ? 2 : 4));
    const TokenStream read = TokenFile(folder / "t").stream();
    EXPECT_EQ(ids_of(read), ids);
    EXPECT_EQ(read.fingerprint(), written.fingerprint());
  }
}

TEST(TokenFile, RoundTripOfRecordsAndOfAPartOfThem) {
  const TestFolder folder;
  const Records written = three_records();
  write_token_file(folder / "all", written);
  write_token_file(folder / "part", written.slice(1, 3));
  const Records all = TokenFile(folder / "all").records();
  EXPECT_EQ(all.fingerprint(), written.fingerprint());
  EXPECT_EQ(all.pad_id, 6);
  EXPECT_EQ(all.classes, 5);
  const Records part = TokenFile(folder / "part").records();
  EXPECT_EQ(part.fingerprint(), written.slice(1, 3).fingerprint());
  EXPECT_EQ(part.offsets[0], 0U);
}

TEST(TokenFile, ChecksEveryIdOfAFileOfManyPieces) {
  const TestFolder folder;
  std::vector<std::int64_t> ids(9'000'000);  // 18 MB
  write_token_file(folder / "zeros", TokenStream::from_ids(ids, 1000));
  const std::string zeros = read_bytes(folder / "zeros");
  EXPECT_EQ(refusal(folder, zeros), "");
  for (const std::size_t place : {0, 2'097'151, 2'097'152, 8'999'999}) {
    const std::string why = lie(folder, zeros, 160 + 2 * place, std::uint16_t{1000});
    EXPECT_TRUE(mentions(why, fmt::format("token id 1000 at place {},", place))) << why;
  }
  std::string damaged = zeros;
  damaged[damaged.size() - 1] = 1;
  EXPECT_TRUE(mentions(refusal(folder, damaged), "checksum of its tokens"));
}

TEST(TokenFile, MappingOutlivesTheFileObjectAndTheName) {
  const TestFolder folder;
  write_token_file(folder / "t", three_records());
  const Records records = TokenFile(folder / "t").records();
  std::filesystem::remove(folder / "t");
  EXPECT_EQ(records.fingerprint(), three_records().fingerprint());
}

TEST(TokenFile, WrongKindIsRefused) {
  const TestFolder folder;
  stream_bytes(folder);
  record_bytes(folder);
  EXPECT_TRUE(mentions(error_of([&] { TokenFile(folder / "s").records(); }), "a stream of text"));
  EXPECT_TRUE(mentions(error_of([&] { TokenFile(folder / "r").stream(); }), "labelled records"));
}

TEST(TokenFile, LayoutIsTheDocumentedOne) {
  const TestFolder folder;
  const std::string bytes = record_bytes(folder);
  const auto number = [&](std::size_t at, std::size_t width) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
    }
    return value;
  };
  EXPECT_EQ(bytes.substr(0, 8), "ZEROTOK\n");
  EXPECT_EQ(number(8, 4), 1U);            // version
  EXPECT_EQ(number(12, 4), 160U);         // header bytes
  EXPECT_EQ(number(16, 4), 2U);           // kind
  EXPECT_EQ(number(20, 4), 2U);           // id bytes
  EXPECT_EQ(number(24, 8), 301U);         // vocabulary
  EXPECT_EQ(number(32, 8), 6U);           // tokens
  EXPECT_EQ(number(40, 8), 3U);           // records
  EXPECT_EQ(number(48, 4), 5U);           // classes
  EXPECT_EQ(number(52, 4), 0U);           // reserved
  EXPECT_EQ(number(56, 8), 6U);           // pad id
  EXPECT_EQ(number(64, 4), 0x33221100U);  // tokenizer fingerprint
  EXPECT_EQ(sign(bytes), bytes);          // both checksums
  ASSERT_EQ(bytes.size(), 160U + 4 * 8 + 3 * 4 + 6 * 2);
  EXPECT_EQ(number(160, 8), 0U);
  EXPECT_EQ(number(184, 8), 6U);
  EXPECT_EQ(number(192, 4), 4U);
  EXPECT_EQ(number(200, 4), 2U);
  EXPECT_EQ(number(204, 2), 7U);
  EXPECT_EQ(number(214, 2), 300U);
}

TEST(TokenFile, EveryFlippedBitIsNoticed) {
  const TestFolder folder;
  for (const std::string& whole : {stream_bytes(folder), record_bytes(folder)}) {
    ASSERT_EQ(refusal(folder, whole), "");
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      EXPECT_NE(refusal(folder, bytes), "") << "byte " << at;
    }
  }
}

TEST(TokenFile, EveryOtherLengthIsRefused) {
  const TestFolder folder;
  for (const std::string& whole : {stream_bytes(folder), record_bytes(folder)}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const std::string why = refusal(folder, whole.substr(0, size));
      EXPECT_TRUE(mentions(why, size == 0 ? "is empty" : "cut short")) << size << ": " << why;
    }
    EXPECT_TRUE(mentions(refusal(folder, whole + "x"), "something was added"));
  }
}

TEST(TokenFile, RefusesWhatIsNoTokenFile) {
  const TestFolder folder;
  EXPECT_TRUE(mentions(error_of([&] { TokenFile(folder / "no"); }), "No such file"));
  EXPECT_TRUE(mentions(error_of([&] { TokenFile{folder.path()}; }), "not a regular file"));
  EXPECT_TRUE(mentions(refusal(folder, std::string(500, 'x')), "is not a token file"));
  EXPECT_TRUE(mentions(refusal(folder, "Dear diary"), "is not a token file"));
}

TEST(TokenFile, DamageAndVersionAreToldApart) {
  const TestFolder folder;
  std::string bytes = stream_bytes(folder);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  EXPECT_TRUE(mentions(refusal(folder, bytes), "checksum of its tokens"));
  bytes = stream_bytes(folder);
  bytes[70] = 1;
  EXPECT_TRUE(mentions(refusal(folder, bytes), "checksum of its header"));
  const std::string newer = lie(folder, stream_bytes(folder), 8, std::uint32_t{2});
  EXPECT_TRUE(mentions(newer, "format version 2, this program reads version 1"));
}

TEST(TokenFile, LyingHeadersAreRefused) {
  const TestFolder folder;
  const std::string stream = stream_bytes(folder);
  const std::string records = record_bytes(folder);
  ASSERT_EQ(refusal(folder, sign(stream)), "");
  using U32 = std::uint32_t;
  using U64 = std::uint64_t;
  EXPECT_TRUE(mentions(lie(folder, stream, 12, U32{161}), "header of 161 bytes"));
  EXPECT_TRUE(mentions(lie(folder, stream, 16, U32{3}), "kind 3"));
  EXPECT_TRUE(mentions(lie(folder, stream, 16, U32{2}), "states 0 records"));
  EXPECT_TRUE(mentions(lie(folder, records, 16, U32{1}), "states 3 records"));
  EXPECT_TRUE(mentions(lie(folder, stream, 20, U32{3}), "ids of 3 bytes"));
  EXPECT_TRUE(mentions(lie(folder, stream, 20, U32{4}), "it is cut short"));
  EXPECT_TRUE(mentions(lie(folder, stream, 24, U64{999}), "token id 999 at place 2"));
  EXPECT_TRUE(mentions(lie(folder, stream, 24, U64{65537}), "vocabulary of 65537"));
  EXPECT_TRUE(mentions(lie(folder, stream, 24, U64{0}), "states a vocabulary of 0"));
  EXPECT_TRUE(mentions(lie(folder, stream, 32, U64{0}), "no tokens"));
  EXPECT_TRUE(mentions(lie(folder, stream, 32, U64{3}), "something was added"));
  EXPECT_TRUE(mentions(lie(folder, stream, 32, U64{5}), "it is cut short"));
  EXPECT_TRUE(mentions(lie(folder, stream, 40, U64{3}), "states 3 records in 0 classes"));
  EXPECT_TRUE(mentions(lie(folder, stream, 52, U32{1}), "reserved field of 1"));
  EXPECT_TRUE(mentions(lie(folder, records, 48, U32{4}), "label 4 on record 0"));
  EXPECT_TRUE(mentions(lie(folder, records, 48, U32{0}), "in 0 classes"));
  EXPECT_TRUE(mentions(lie(folder, records, 56, std::int64_t{301}), "pad id 301"));
  EXPECT_TRUE(mentions(lie(folder, records, 56, std::int64_t{-2}), "pad id -2"));
}

TEST(TokenFile, CountsThatWouldOverflowAreRefused) {
  const TestFolder folder;
  const std::string stream = stream_bytes(folder);
  // 2^63 + 4 ids of 2 bytes are 8 bytes modulo 2^64: the size would seem right.
  const std::uint64_t wraps = (std::uint64_t{1} << 63) + 4;
  EXPECT_TRUE(mentions(lie(folder, stream, 32, wraps), "cannot hold"));
  EXPECT_TRUE(mentions(lie(folder, record_bytes(folder), 40, ~std::uint64_t{0}), "cannot hold"));
}

TEST(TokenFile, LyingOffsetsAreRefused) {
  const TestFolder folder;
  const std::string records = record_bytes(folder);
  const auto with = [&](std::size_t entry, std::uint64_t value) {
    return lie(folder, records, 160 + 8 * entry, value);
  };
  EXPECT_TRUE(mentions(with(0, 1), "from token 1 to 6"));
  EXPECT_TRUE(mentions(with(3, 7), "from token 0 to 7"));
  EXPECT_TRUE(mentions(with(1, 4), "record 1 from token 4 to 4: no tokens"));
  EXPECT_TRUE(mentions(with(1, 5), "record 1 from token 5 to 4"));
  EXPECT_TRUE(mentions(with(1, ~std::uint64_t{0}), "record 1 from token"));
}

TEST(TokenFile, NoPadIdMeansZero) {
  const TestFolder folder;
  std::string records = record_bytes(folder);
  put(records, 56, std::int64_t{-1});
  const auto path = folder.write("t", sign(records));
  EXPECT_EQ(TokenFile(path).records().pad_id, 0);
}

TEST(WriteTokenFile, LeavesNoPartOfAFileBehind) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "taken/inside");
  const TokenStream text = TokenStream::from_bytes("text");
  EXPECT_TRUE(
      mentions(error_of([&] { write_token_file(folder / "taken", text); }), "cannot write"));
  EXPECT_TRUE(mentions(error_of([&] { write_token_file(folder / "no/t", text); }),
                       "No such file or directory"));
  EXPECT_NE(error_of([&] { write_token_file(folder / "t", TokenStream()); }), "");
  EXPECT_NE(error_of([&] { write_token_file(folder / "t", three_records().slice(0, 0)); }), "");
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    left.push_back(entry.path().filename());
  }
  EXPECT_EQ(left, std::vector<std::string>{"taken"});
}

TEST(WriteTokenFile, ReplacesAFileWithoutTouchingWhoReadsIt) {
  const TestFolder folder;
  write_token_file(folder / "t", TokenStream::from_bytes("first"));
  const TokenStream first = TokenFile(folder / "t").stream();
  write_token_file(folder / "t", TokenStream::from_bytes("2"));
  EXPECT_EQ(TokenFile(folder / "t").stream().size(), 1);
  EXPECT_EQ(first.fingerprint(), TokenStream::from_bytes("first").fingerprint());
}

}  // namespace
}  // namespace zero::data

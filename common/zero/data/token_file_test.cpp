#include <fmt/format.h>

#include <cstring>

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <tests/support/token_file_writer.hpp>
#include <zero/data/token_file.hpp>
#include <zero/data/token_header.hpp>
#include <zero/data/token_stream.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::expect_error;
using testing::ids_of;
using testing::kSomeTokenizer;
using testing::mentions;
using testing::read_bytes;
using testing::TestFolder;
using testing::three_records;
using testing::write_token_file;

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

TEST(TokenFile, RoundTripOfRecords) {
  const TestFolder folder;
  const Records written = three_records();
  write_token_file(folder / "all", written);
  const Records all = TokenFile(folder / "all").records();
  EXPECT_EQ(all.fingerprint(), written.fingerprint());
  EXPECT_EQ(all.pad_id, 6);
  EXPECT_EQ(all.classes, 5);
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
  expect_error([&] { TokenFile(folder / "s").records(); }, {"a stream of text"});
  expect_error([&] { TokenFile(folder / "r").stream(); }, {"labelled records"});
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
  struct Field {
    const char* name;
    std::size_t at, width;
    std::uint64_t value;
  };
  EXPECT_EQ(bytes.substr(0, 8), "ZEROTOK\n");
  EXPECT_EQ(sign(bytes), bytes) << "both checksums";
  ASSERT_EQ(bytes.size(), 160U + 4 * 8 + 3 * 4 + 6 * 2);
  for (const auto& [name, at, width, value] :
       std::initializer_list<Field>{{"version", 8, 4, 1},
                                    {"header bytes", 12, 4, 160},
                                    {"kind", 16, 4, 2},
                                    {"id bytes", 20, 4, 2},
                                    {"vocabulary", 24, 8, 301},
                                    {"tokens", 32, 8, 6},
                                    {"records", 40, 8, 3},
                                    {"classes", 48, 4, 5},
                                    {"reserved", 52, 4, 0},
                                    {"pad id", 56, 8, 6},
                                    {"tokenizer fingerprint", 64, 4, 0x33221100},
                                    {"first offset", 160, 8, 0},
                                    {"last offset", 184, 8, 6},
                                    {"first label", 192, 4, 4},
                                    {"last label", 200, 4, 2},
                                    {"first token", 204, 2, 7},
                                    {"last token", 214, 2, 300}}) {
    EXPECT_EQ(number(at, width), value) << name;
  }
}

TEST(TokenFile, EveryFlippedBitAndEveryOtherLengthIsNoticed) {
  const TestFolder folder;
  for (const std::string& whole : {stream_bytes(folder), record_bytes(folder)}) {
    ASSERT_EQ(refusal(folder, whole), "");
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      EXPECT_NE(refusal(folder, bytes), "") << "byte " << at;
      const std::string why = refusal(folder, whole.substr(0, at));
      EXPECT_TRUE(mentions(why, at == 0 ? "is empty" : "cut short")) << at << ": " << why;
    }
    EXPECT_TRUE(mentions(refusal(folder, whole + "x"), "something was added"));
  }
}

TEST(TokenFile, RefusesWhatIsNoTokenFile) {
  const TestFolder folder;
  expect_error([&] { TokenFile(folder / "no"); }, {"No such file"});
  expect_error([&] { TokenFile{folder.path()}; }, {"not a regular file"});
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
  const std::vector<std::pair<std::string, const char*>> lies = {
      {lie(folder, stream, 12, U32{161}), "header of 161 bytes"},
      {lie(folder, stream, 16, U32{3}), "kind 3"},
      {lie(folder, stream, 16, U32{2}), "states 0 records"},
      {lie(folder, records, 16, U32{1}), "states 3 records"},
      {lie(folder, stream, 20, U32{3}), "ids of 3 bytes"},
      {lie(folder, stream, 20, U32{4}), "it is cut short"},
      {lie(folder, stream, 24, U64{999}), "token id 999 at place 2"},
      {lie(folder, stream, 24, U64{65537}), "vocabulary of 65537"},
      {lie(folder, stream, 24, U64{0}), "states a vocabulary of 0"},
      {lie(folder, stream, 32, U64{0}), "no tokens"},
      {lie(folder, stream, 32, U64{3}), "something was added"},
      {lie(folder, stream, 32, U64{5}), "it is cut short"},
      // 2^63 + 4 ids of 2 bytes are 8 bytes modulo 2^64: the size would seem right.
      {lie(folder, stream, 32, (U64{1} << 63) + 4), "cannot hold"},
      {lie(folder, stream, 40, U64{3}), "states 3 records in 0 classes"},
      {lie(folder, stream, 52, U32{1}), "reserved field of 1"},
      {lie(folder, records, 40, ~U64{0}), "cannot hold"},
      {lie(folder, records, 48, U32{4}), "label 4 on record 0"},
      {lie(folder, records, 48, U32{0}), "in 0 classes"},
      {lie(folder, records, 56, std::int64_t{301}), "pad id 301"},
      {lie(folder, records, 56, std::int64_t{-2}), "pad id -2"},
      // Offsets of records.
      {lie(folder, records, 160, U64{1}), "from token 1 to 6"},
      {lie(folder, records, 160 + 8 * 3, U64{7}), "from token 0 to 7"},
      {lie(folder, records, 160 + 8, U64{4}), "record 1 from token 4 to 4: no tokens"},
      {lie(folder, records, 160 + 8, U64{5}), "record 1 from token 5 to 4"},
      {lie(folder, records, 160 + 8, ~U64{0}), "record 1 from token"}};
  for (const auto& [why, message] : lies) {
    EXPECT_TRUE(mentions(why, message)) << why << ", and not: " << message;
  }
}

TEST(TokenFile, NoPadIdMeansZero) {
  const TestFolder folder;
  std::string records = record_bytes(folder);
  put(records, 56, std::int64_t{-1});
  const auto path = folder.write("t", sign(records));
  EXPECT_EQ(TokenFile(path).records().pad_id, 0);
}

TEST(TokenStream, RefusesWhatIsOutside) {
  const std::vector<std::int64_t> ids{1, 2, 3};
  const TokenStream stream = TokenStream::from_ids(ids, 4);
  std::int64_t id = 0;
  expect_error([&] { stream.copy(3, {&id, 1}); }, {"[3, 4)"});
  expect_error([&] { stream.copy(-1, {&id, 1}); }, {"[-1, 0)"});
  expect_error([&] { TokenStream::from_ids(ids, 3); }, {"token 2 is 3"});
  expect_error([&] { TokenStream::from_ids({}, 0); }, {"vocabulary of 0"});
}

TEST(TokenStream, FingerprintIsOfTheTokensAlone) {
  const std::vector<std::int64_t> ids{1, 2, 3};
  const std::vector<std::int64_t> others{1, 2, 4};
  const TokenStream stream = TokenStream::from_ids(ids, 256);
  EXPECT_EQ(stream.fingerprint(), TokenStream::from_bytes("\1\2\3").fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_ids(others, 256).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_ids(ids, 257).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_ids(ids, 256, kSomeTokenizer).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_bytes("\1\2").fingerprint());
}

TEST(Records, FingerprintIsOfTextsAndLabels) {
  const Records records = three_records();
  EXPECT_EQ(records.fingerprint(), three_records().fingerprint());
  const std::vector<Record> relabelled{{4, {7, 8, 9}}, {1, {10}}, {2, {11, 300}}};
  const std::vector<Record> recut{{4, {7, 8}}, {0, {9, 10}}, {2, {11, 300}}};
  for (const auto& other : {relabelled, recut}) {
    EXPECT_NE(records.fingerprint(), Records::from(other, 5, 301, 6, kSomeTokenizer).fingerprint());
  }
}

TEST(Records, RefusesBadOnes) {
  const auto refuse = [](Record record, std::int64_t pad_id = 0) {
    return error_of([&] { Records::from({&record, 1}, 5, 10, pad_id); });
  };
  EXPECT_EQ(refuse({4, {9}}), "");
  EXPECT_TRUE(mentions(refuse({5, {9}}), "label 5"));
  EXPECT_TRUE(mentions(refuse({-1, {9}}), "label -1"));
  EXPECT_TRUE(mentions(refuse({0, {}}), "no tokens"));
  EXPECT_TRUE(mentions(refuse({0, {10}}), "outside the vocabulary"));
  EXPECT_TRUE(mentions(refuse({0, {9}}, 10), "pad id 10"));
  expect_error([] { Records::from({}, 5, 10); }, {"no records"});
}

}  // namespace
}  // namespace zero::data

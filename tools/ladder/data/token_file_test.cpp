#include "token_file.hpp"

#include <fmt/format.h>

#include <functional>

#include <tests/support/data_files.hpp>
#include <tests/support/token_file_writer.hpp>

#include "token_stream.hpp"

namespace zero::data {
namespace {

using testing::error_of;
using testing::expect_error;
using testing::ids_of;
using testing::kSomeTokenizer;
using testing::mentions;
using testing::parts_of;
using testing::stream_of;
using testing::TestFolder;
using testing::TokenFileParts;
using testing::write_token_file;

TokenStream some_stream() { return stream_of({1, 2, 999, 4}, 1000, kSomeTokenizer); }

std::string refusal(const TestFolder& folder, const std::string& bytes) {
  const auto path = folder.write("tried", bytes);
  return error_of([&] { read_token_file(path); });
}

// Ids of 1, 2 and 4 bytes. The mapping outlives the name.
TEST(TokenFile, RoundTripOfStreams) {
  const TestFolder folder;
  for (const std::int64_t vocabulary : {256, 257, 65536, 65537}) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 10'000; ++i) ids.push_back(i * 7919 % vocabulary);
    ids.push_back(vocabulary - 1);
    const TokenStream written = stream_of(ids, vocabulary, kSomeTokenizer);
    write_token_file(folder / "t", parts_of(written));
    const TokenStream read = read_token_file(folder / "t");
    std::filesystem::remove(folder / "t");
    EXPECT_EQ(ids_of(read), ids);
    EXPECT_EQ(read.fingerprint(), written.fingerprint());
  }
}

TEST(TokenFile, ChecksEveryIdOfAFileOfManyPieces) {
  const TestFolder folder;
  const TokenFileParts zeros = parts_of(stream_of(std::vector<std::int64_t>(9'000'000), 1000));
  write_token_file(folder / "zeros", zeros);
  EXPECT_EQ(read_token_file(folder / "zeros").size(), 9'000'000);
  for (const std::int64_t place : {0, 2'097'151, 2'097'152, 8'999'999}) {
    TokenFileParts parts = zeros;
    parts.tensors[0].second = zeros.tensors[0].second.clone();
    parts.tensors[0].second.mutable_data_ptr<std::uint16_t>()[place] = 1000;
    write_token_file(folder / "one", parts);
    expect_error([&] { read_token_file(folder / "one"); },
                 {fmt::format("token id 1000 at place {},", place)});
  }
}

TEST(TokenFile, EveryFlippedBitAndEveryOtherLengthIsNoticed) {
  const TestFolder folder;
  write_token_file(folder / "s", parts_of(some_stream()));
  const std::string whole = testing::read_bytes(folder / "s");
  ASSERT_EQ(refusal(folder, whole), "");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    EXPECT_TRUE(mentions(refusal(folder, bytes), "tried")) << "byte " << at;
    EXPECT_TRUE(mentions(refusal(folder, whole.substr(0, at)), "tried")) << at;
  }
  EXPECT_TRUE(mentions(refusal(folder, whole + "x"), "something was added"));
}

TEST(TokenFile, RefusesWhatIsNoTokenFile) {
  const TestFolder folder;
  expect_error([&] { read_token_file(folder / "no"); }, {"No such file"});
  EXPECT_TRUE(mentions(refusal(folder, std::string(500, 'x')), "is not a token file"));
  safetensors::save(folder / "weights", {{"ids", at::ones({3})}});
  expect_error([&] { read_token_file(folder / "weights"); }, {"weights", "is not a token file"});
  // The name alone says that it was meant as one.
  folder.write("diary.tokens", "Dear diary");
  expect_error([&] { read_token_file(folder / "diary.tokens"); }, {"diary.tokens", "header"});
}

// Files that lie: their checksum is right, so no damage was done to them.
TEST(TokenFile, LyingFilesAreRefused) {
  const TestFolder folder;
  using Lie = std::function<void(TokenFileParts&)>;
  const auto states = [](const char* key, const char* value) -> Lie {
    return [=](TokenFileParts& parts) { parts.metadata[key] = value; };
  };
  const auto lacks = [](const char* key) -> Lie {
    return [=](TokenFileParts& parts) { parts.metadata.erase(key); };
  };
  const auto has = [](at::Tensor ids) -> Lie {
    return [=](TokenFileParts& parts) { parts.tensors[0].second = ids; };
  };
  for (const auto& [tell, said] : std::vector<std::pair<Lie, const char*>>{
           {states("format", "zero tokens 2"), "is not a token file"},
           {lacks("format"), "no format"},
           {lacks("tokenizer"), "no tokenizer"},
           {lacks("vocabulary"), "no vocabulary"},
           {states("vocabulary", "999"), "token id 999 at place 2"},
           {states("vocabulary", "0"), "vocabulary \"0\""},
           {states("vocabulary", "2147483649"), "from 1 to 2147483648"},
           {states("vocabulary", "1000 "), "vocabulary \"1000 \""},
           {has(at::ones({3}, at::kShort)), "ids must be U8, U16 or I32"},
           {has(at::ones({2, 2}, at::kByte)), "ids must be U8, U16 or I32 in one dimension"}}) {
    SCOPED_TRACE(said);
    TokenFileParts parts = parts_of(some_stream());
    tell(parts);
    write_token_file(folder / "lie", parts);
    expect_error([&] { read_token_file(folder / "lie"); }, {"lie", said});
  }
}

TEST(TokenStream, RefusesWhatIsOutside) {
  const TokenStream stream = stream_of({1, 2, 3}, 4);
  std::int64_t id = 0;
  expect_error([&] { stream.copy(3, {&id, 1}); }, {"[3, 4)"});
  expect_error([&] { stream.copy(-1, {&id, 1}); }, {"[-1, 0)"});
}

TEST(TokenStream, FingerprintIsOfTheTokensAlone) {
  const TokenStream stream = stream_of({1, 2, 3}, 256);
  EXPECT_EQ(stream.fingerprint(), TokenStream::from_bytes("\1\2\3").fingerprint());
  EXPECT_NE(stream.fingerprint(), stream_of({1, 2, 4}, 256).fingerprint());
  EXPECT_NE(stream.fingerprint(), stream_of({1, 2, 3}, 257).fingerprint());
  EXPECT_NE(stream.fingerprint(), stream_of({1, 2, 3}, 256, kSomeTokenizer).fingerprint());
  EXPECT_NE(stream.fingerprint(), TokenStream::from_bytes("\1\2").fingerprint());
}

}  // namespace
}  // namespace zero::data

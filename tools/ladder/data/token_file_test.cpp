#include "token_file.hpp"

#include <fmt/format.h>

#include <fstream>
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
using testing::read_bytes;
using testing::records_of;
using testing::stream_of;
using testing::TestFolder;
using testing::three_records;
using testing::TokenFileParts;
using testing::write_token_file;

TokenStream some_stream() { return stream_of({1, 2, 999, 4}, 1000, kSomeTokenizer); }

std::string refusal(const TestFolder& folder, const std::string& bytes) {
  const auto path = folder.write("tried", bytes);
  return error_of([&] { TokenFile{path}; });
}

TEST(TokenFile, RoundTripOfStreams) {
  const TestFolder folder;
  for (const std::int64_t vocabulary : {256, 257, 65536, 65537}) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 10'000; ++i) {
      ids.push_back(i * 7919 % vocabulary);
    }
    ids.push_back(vocabulary - 1);
    const TokenStream written = stream_of(ids, vocabulary, kSomeTokenizer);
    write_token_file(folder / "t", written);
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
  const TokenFileParts zeros = parts_of(stream_of(std::vector<std::int64_t>(9'000'000), 1000));
  write_token_file(folder / "zeros", zeros);
  EXPECT_EQ(TokenFile(folder / "zeros").stream().size(), 9'000'000);
  for (const std::int64_t place : {0, 2'097'151, 2'097'152, 8'999'999}) {
    TokenFileParts parts = zeros;
    parts.tensors[0].second = zeros.tensors[0].second.clone();
    parts.tensors[0].second.mutable_data_ptr<std::uint16_t>()[place] = 1000;
    write_token_file(folder / "one", parts);
    expect_error([&] { TokenFile{folder / "one"}; },
                 {fmt::format("token id 1000 at place {},", place)});
  }
}

TEST(TokenFile, MappingOutlivesTheFileObjectAndTheName) {
  const TestFolder folder;
  write_token_file(folder / "t", three_records());
  const Records records = TokenFile(folder / "t").records();
  std::filesystem::remove(folder / "t");
  EXPECT_EQ(records.fingerprint(), three_records().fingerprint());
}

// The system would read ahead of every sample, and drop what was read behind it.
TEST(TokenFile, IsNotSaidToBeReadInOrder) {
  const TestFolder folder;
  write_token_file(folder / "t", some_stream());
  const TokenFile file(folder / "t");
  std::ifstream smaps("/proc/self/smaps");
  bool mapped = false;
  for (std::string line; std::getline(smaps, line);) {
    mapped = mapped || line.find((folder / "t").string()) != std::string::npos;
    if (!mapped || !line.starts_with("VmFlags:")) continue;
    EXPECT_EQ(line.find(" sr"), std::string::npos) << line;
    return;
  }
  FAIL() << "the file is not mapped";
}

TEST(TokenFile, WrongKindIsRefused) {
  const TestFolder folder;
  write_token_file(folder / "s", some_stream());
  write_token_file(folder / "r", three_records());
  expect_error([&] { TokenFile(folder / "s").records(); }, {"a stream of text"});
  expect_error([&] { TokenFile(folder / "r").stream(); }, {"labelled texts"});
}

TEST(TokenFile, LayoutIsTheDocumentedOne) {
  const TestFolder folder;
  write_token_file(folder / "r", three_records());
  const std::string bytes = read_bytes(folder / "r");
  std::string header =
      R"({"__metadata__":{"classes":"5","format":"zero tokens","pad_id":"6","sha256":")"
      "db001290c2c6cb742499284b70dcfce212b87b5852eb9d353754b356e45a165d"
      R"(","tokenizer":")" +
      kSomeTokenizer +
      R"(","vocabulary":"301"},)"
      R"("offsets":{"dtype":"I64","shape":[4],"data_offsets":[0,32]},)"
      R"("labels":{"dtype":"I64","shape":[3],"data_offsets":[32,56]},)"
      R"("ids":{"dtype":"U16","shape":[6],"data_offsets":[56,68]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.size(), 8 + header.size() + 68);
}

TEST(TokenFile, EveryFlippedBitAndEveryOtherLengthIsNoticed) {
  const TestFolder folder;
  write_token_file(folder / "s", some_stream());
  write_token_file(folder / "r", three_records());
  for (const std::string& whole : {read_bytes(folder / "s"), read_bytes(folder / "r")}) {
    ASSERT_EQ(refusal(folder, whole), "");
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      EXPECT_TRUE(mentions(refusal(folder, bytes), "tried")) << "byte " << at;
      EXPECT_TRUE(mentions(refusal(folder, whole.substr(0, at)), "tried")) << at;
    }
    EXPECT_TRUE(mentions(refusal(folder, whole + "x"), "something was added"));
  }
}

TEST(TokenFile, RefusesWhatIsNoTokenFile) {
  const TestFolder folder;
  expect_error([&] { TokenFile(folder / "no"); }, {"No such file"});
  expect_error([&] { TokenFile{folder.path()}; }, {"not a regular file"});
  EXPECT_TRUE(mentions(refusal(folder, ""), "is empty"));
  EXPECT_TRUE(mentions(refusal(folder, std::string(500, 'x')), "is not a token file"));
  EXPECT_TRUE(mentions(refusal(folder, "Dear diary"), "is not a token file"));
  safetensors::save(folder / "weights", {{"ids", at::ones({3})}});
  expect_error([&] { TokenFile(folder / "weights"); }, {"weights", "is not a token file"});
  // The name alone says that it was meant as one.
  folder.write("diary.tokens", "Dear diary");
  expect_error([&] { TokenFile(folder / "diary.tokens"); }, {"diary.tokens", "header"});
}

TEST(TokenFile, DamageOfMetadataAndOfTensorsIsToldByTheChecksum) {
  const TestFolder folder;
  write_token_file(folder / "s", some_stream());
  const std::string whole = read_bytes(folder / "s");
  for (const std::size_t at : {whole.find("1000"), whole.size() - 1}) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 2);
    EXPECT_TRUE(mentions(refusal(folder, bytes), "checksum")) << at;
  }
}

// Files that lie: their checksum is right, so no damage was done to them.
TEST(TokenFile, LyingFilesAreRefused) {
  const TestFolder folder;
  struct Lie {
    std::function<void(TokenFileParts&)> tell;
    const char* refusal;
  };
  const auto states = [](const char* key, const char* value) {
    return [=](TokenFileParts& parts) { parts.metadata[key] = value; };
  };
  const auto lacks = [](const char* key) {
    return [=](TokenFileParts& parts) { parts.metadata.erase(key); };
  };
  // Tensor 0 is the offsets 0, 3, 4 and 6, tensor 1 the labels, tensor 2 the ids.
  const auto holds = [](std::size_t tensor, std::vector<std::int64_t> values) {
    return [=](TokenFileParts& parts) {
      parts.tensors[tensor].second = at::tensor(values, at::kLong);
    };
  };
  const auto changes = [](std::size_t tensor, const std::function<at::Tensor(at::Tensor)>& how) {
    return [=](TokenFileParts& parts) {
      parts.tensors[tensor].second = how(parts.tensors[tensor].second).contiguous();
    };
  };
  const auto to_short = [](const at::Tensor& t) { return t.to(at::kShort); };
  const auto in_two = [](const at::Tensor& t) { return t.view({2, -1}); };
  const std::vector<Lie> lies = {
      {states("format", "zero tokens 2"), "is not a token file"},
      {lacks("format"), "no format"},
      {lacks("tokenizer"), "no tokenizer"},
      {lacks("vocabulary"), "no vocabulary"},
      {states("vocabulary", "300"), "token id 300 at place 5"},
      {states("vocabulary", "0"), "vocabulary \"0\""},
      {states("vocabulary", "2147483649"), "from 1 to 2147483648"},
      {states("vocabulary", "301 "), "vocabulary \"301 \""},
      {states("vocabulary", "many"), "must be a number"},
      {states("classes", "0"), "classes \"0\""},
      {states("classes", "4"), "label 4 on record 0"},
      {states("pad_id", "301"), "pad_id \"301\""},
      {states("pad_id", "-1"), "from 0 to 300"},
      {changes(2, to_short), "ids must be U8, U16 or I32"},
      {changes(2, in_two), "ids must be U8, U16 or I32 in one dimension"},
      {changes(1, to_short), "labels must be I64"},
      {changes(0, in_two), "offsets must be I64 in one dimension"},
      {[](TokenFileParts& parts) { parts.tensors[1].first = "marks"; }, "no tensor \"labels\""},
      {holds(1, {4, 0, -1}), "label -1 on record 2"},
      {holds(1, {4, 0}), "4 offsets and 2 labels"},
      {holds(0, {}), "0 offsets"},
      {holds(0, {1, 3, 4, 6}), "from 0 to 6"},
      {holds(0, {0, 3, 4, 7}), "from 0 to 6"},
      {holds(0, {0, 4, 4, 6}), "record 1 from token 4 to 4"},
      {holds(0, {0, 5, 4, 6}), "record 1 from token 5 to 4"},
      {holds(0, {0, -1, 4, 6}), "record 0 from token 0 to -1"}};
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.refusal);
    TokenFileParts parts = parts_of(three_records());
    lie.tell(parts);
    write_token_file(folder / "lie", parts);
    expect_error([&] { TokenFile(folder / "lie"); }, {"lie", lie.refusal});
  }
}

// As a writer would leave them that does not pad the header.
TEST(TokenFile, NumbersThatAreNotAlignedAreRefused) {
  const TestFolder folder;
  write_token_file(folder / "r", three_records());
  std::string bytes = read_bytes(folder / "r");
  const auto header = static_cast<unsigned char>(bytes[0]) + 1;
  ASSERT_LT(header, 256);
  bytes[0] = static_cast<char>(header);
  bytes.insert(bytes.find("}}") + 2, " ");
  EXPECT_TRUE(mentions(refusal(folder, bytes), "offsets must be I64 in one dimension, aligned"));
}

TEST(TokenFile, NoPadIdMeansZero) {
  const TestFolder folder;
  TokenFileParts parts = parts_of(three_records());
  parts.metadata.erase("pad_id");
  write_token_file(folder / "t", parts);
  EXPECT_EQ(TokenFile(folder / "t").records().pad_id, 0);
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

TEST(Records, FingerprintIsOfTextsAndLabels) {
  const Records records = three_records();
  EXPECT_EQ(records.fingerprint(), three_records().fingerprint());
  const std::vector<testing::Record> relabelled{{4, {7, 8, 9}}, {1, {10}}, {2, {11, 300}}};
  const std::vector<testing::Record> recut{{4, {7, 8}}, {0, {9, 10}}, {2, {11, 300}}};
  for (const auto& other : {relabelled, recut}) {
    EXPECT_NE(records.fingerprint(), records_of(other, 5, 301, 6, kSomeTokenizer).fingerprint());
  }
}

}  // namespace
}  // namespace zero::data

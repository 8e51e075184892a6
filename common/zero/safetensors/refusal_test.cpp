// Files that lie: each is made by hand, and the message must say what is wrong and where.
#include <sys/stat.h>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::safetensors {
namespace {

using testing::expect_error;
using testing::hand_made;
using testing::TestFolder;
using Parts = std::vector<std::string>;
using Location = std::source_location;

// Expects that a file with these bytes is refused by its path and `parts`.
void expect_refused(const std::string& bytes, Parts parts, Location where = Location::current()) {
  const TestFolder folder;
  const auto path = folder.write("bad.safetensors", bytes);
  parts.push_back(path.string());
  expect_error([&] { File file(path); }, parts, where);
}

// The same for a file with this header and 8 bytes of data.
void expect_header_refused(const std::string& header, const Parts& parts,
                           Location where = Location::current()) {
  expect_refused(hand_made(header, std::string(8, '\0')), parts, where);
}

// The same for a file whose only tensor, "w", has this description and 8 bytes of data.
void expect_entry_refused(const std::string& entry, Parts parts,
                          Location where = Location::current()) {
  parts.emplace_back("\"w\"");
  expect_header_refused("{\"w\":" + entry + "}", parts, where);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string header_of_two_floats() { return "{\"w\":" + entry("F32", "[2]", "[0,8]") + "}"; }

TEST(SafetensorsRefusal, TheFileThatOthersAreMadeFromIsFine) {
  const TestFolder folder;
  const File file(folder.write("good", hand_made(header_of_two_floats(), "12345678")));
  EXPECT_TRUE(file.contains("w"));
}

TEST(SafetensorsRefusal, WhatIsNotAFile) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { File file(folder / "none"); }, {"none", "No such file"});
  expect_error([&] { File file(folder.path()); }, {"is not a regular file"});
  expect_error([&] { File file(folder / "pipe"); }, {"pipe", "is not a regular file"});
}

TEST(SafetensorsRefusal, FilesThatAreTooShort) {
  expect_refused("", {"is empty"});
  expect_refused("1234567", {"has 7 bytes", "8 bytes of length"});
  const std::string whole = hand_made(header_of_two_floats(), "12345678");
  for (std::size_t size = 1; size < whole.size(); ++size) expect_refused(whole.substr(0, size), {});
  expect_refused(whole.substr(0, 30), {"claims a header", "22", "cut short"});
  expect_refused("\3" + hand_made("{}", "").substr(1), {"a header of 3 bytes", "can have 2"});
  expect_refused(whole.substr(0, whole.size() - 1), {"7 bytes", "take 8", "cut short"});
}

TEST(SafetensorsRefusal, HeadersOfAnAbsurdLength) {
  std::string two_gigabytes = hand_made("{}", "");
  two_gigabytes[3] = '\x7f';
  expect_refused(two_gigabytes, {"claims a header of 2130706434"});
  expect_refused(std::string(8, '\xff') + "{}", {"18446744073709551615"});
  expect_refused(std::string(8, '\0'), {"JSON is broken"});
  const TestFolder folder;
  const auto sparse = folder.write("large.safetensors", two_gigabytes);
  std::filesystem::resize_file(sparse, std::uintmax_t{1} << 32);
  expect_error([&] { File file(sparse); }, {"large.safetensors", "can have 100000000"});
}

TEST(SafetensorsRefusal, OtherKindsOfFiles) {
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n",
                 {"Git LFS pointer", "git lfs pull"});
  expect_refused("PK\x03\x04 the beginning of an archive", {"not a safetensors file"});
}

TEST(SafetensorsRefusal, HeadersThatAreNotJson) {
  expect_header_refused("[]", {"not an object"});
  for (const char* header : {"{\"w\":", "{} {}", "{\"\xff\xfe\":1}"}) {
    expect_header_refused(header, {"JSON is broken at byte"});
  }
  expect_header_refused(header_of_two_floats() + '\0', {"a byte of zeros"});
  expect_header_refused("{\"w\":1e999}", {"number that is too large"});
  expect_header_refused("{\"w\":" + std::string(1'000'000, '['), {"nested deeper"});
}

TEST(SafetensorsRefusal, MetadataThatIsNotText) {
  expect_header_refused(R"({"__metadata__":[]})", {"__metadata__", "not a JSON object"});
  expect_header_refused(R"({"__metadata__":{"epoch":3}})", {"__metadata__", "object of texts"});
}

TEST(SafetensorsRefusal, EntriesThatAreIncomplete) {
  expect_entry_refused("3", {"has no \"dtype\""});
  expect_entry_refused(R"({"dtype":"F32","shape":[2]})", {"has no \"data_offsets\""});
  expect_entry_refused(R"({"dtype":"F32","data_offsets":[0,8]})", {"has no \"shape\""});
  expect_entry_refused(R"({"shape":[2],"data_offsets":[0,8]})", {"has no \"dtype\""});
}

TEST(SafetensorsRefusal, DtypesThatAreUnknown) {
  expect_entry_refused(entry("F8_E4M3", "[8]", "[0,8]"),
                       {"\"F8_E4M3\"", "F64, F32, F16, BF16, I64, I32, I16, I8, U16, U8, BOOL"});
  expect_entry_refused(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})",
                       {"dtype \"number\" cannot be read"});
  // A message is safe to print whatever a file is called or says.
  for (const std::string dtype : {"f32", "\\u001b[31m", "\\u009b[31m"}) {
    expect_entry_refused(entry(dtype, "[2]", "[0,8]"), {"\"" + dtype + "\""});
  }
}

TEST(SafetensorsRefusal, ShapesThatAreNone) {
  for (const char* shape : {"[-2]", "[2.0]", "[\"2\"]", "[null]", "[18446744073709551615]"}) {
    expect_entry_refused(entry("F32", shape, "[0,8]"), {"shape", "not a whole number"});
  }
  expect_entry_refused(entry("F32", "2", "[0,8]"), {"shape is not a list"});
  // Products that wrap around to 8 bytes, to 0, and that only a dimension of 0 hides.
  expect_entry_refused(entry("F32", "[4611686018427387906,1]", "[0,8]"), {"63 bits"});
  expect_entry_refused(entry("U8", "[4294967296,4294967296]", "[0,0]"), {"63 bits"});
  expect_entry_refused(entry("U8", "[0,4294967296,4294967296]", "[0,0]"), {"63 bits"});
  std::string ones = "[2";
  for (int i = 0; i < 64; ++i) ones += ",1";
  expect_entry_refused(entry("F32", ones + "]", "[0,8]"), {"65 dimensions", "64"});
}

TEST(SafetensorsRefusal, OffsetsThatAreWrong) {
  const std::vector<std::pair<std::string, Parts>> rows = {
      {"[0]", {"1 data_offsets", "must be 2"}},
      {"[0,4,8]", {"3 data_offsets"}},
      {"8", {"data_offsets is not a list"}},
      {"[0,8.0]", {"data_offsets", "whole number"}},
      {"[-8,0]", {"data_offsets", "whole number"}},
      {"[8,0]", {"[8, 0]", "span -8 bytes"}},
      {"[8,16]", {"at byte 8", "ends at 0"}},
      {"[0,9223372036854775807]", {"span 9223372036854775807"}},
      {"[0,18446744073709551615]", {"whole number"}},
      {"[0,4]", {"[0, 4]", "span 4 bytes", "F32 [2] takes 8"}},
      {"[0,7]", {"span 7 bytes", "takes 8"}}};
  for (const auto& [offsets, parts] : rows) {
    expect_entry_refused(entry("F32", "[2]", offsets), parts);
  }
  expect_entry_refused(entry("F32", "[1]", "[0,8]"), {"span 8 bytes", "takes 4"});
}

TEST(SafetensorsRefusal, TensorsThatOverlapOrLeaveHoles) {
  const auto two = [](const std::string& first, const std::string& second) {
    return "{\"a\":" + first + ",\"b\":" + second + "}";
  };
  const std::string begin = entry("U8", "[4]", "[0,4]");
  expect_header_refused(two(begin, entry("U8", "[4]", "[2,6]")),
                        {"\"b\"", "at byte 2", "ends at 4"});
  expect_header_refused(two(begin, begin), {"\"b\"", "at byte 0", "overlap"});
  expect_entry_refused(entry("U8", "[4]", "[4,8]"), {"at byte 4", "ends at 0", "holes"});
  expect_header_refused(two(entry("U8", "[1]", "[0,1]"), entry("U8", "[6]", "[2,8]")),
                        {"\"b\"", "at byte 2", "ends at 1"});
  // Bytes that belong to nobody, at the end.
  expect_header_refused("{\"w\":" + entry("F32", "[1]", "[0,4]") + "}",
                        {"8 bytes follow the header", "its tensors take 4"});
  expect_header_refused("{}", {"8 bytes follow the header", "take 0"});
  // An empty tensor has a place too.
  expect_header_refused(two(entry("U8", "[8]", "[0,8]"), entry("U8", "[0]", "[5,5]")),
                        {"\"b\"", "at byte 5"});
}

TEST(SafetensorsRefusal, ABoolOfTwo) {
  const TestFolder folder;
  const std::string header = "{\"mask\":" + entry("BOOL", "[2]", "[0,2]") + "}";
  const auto path = folder.write("bool.safetensors", hand_made(header, "\x01\x02"));
  const File file(path);
  expect_error([&] { file.read("mask"); }, {path.string(), "\"mask\"", "neither 0 nor 1"});
}

}  // namespace
}  // namespace zero::safetensors

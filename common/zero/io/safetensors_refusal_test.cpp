// Files that lie: each is made by hand, and the message must say what is wrong and where.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/safetensors.hpp>

namespace zero::io {
namespace {

using testing::error_of;
using testing::hand_made;
using testing::lacking;
using testing::TestFolder;

// What is missing of `parts` in the refusal of a file with these bytes; empty where all is there.
std::string lacking_in_refusal(const std::string& bytes, std::vector<std::string> parts) {
  const TestFolder folder;
  const auto path = folder.write("bad.safetensors", bytes);
  parts.push_back(path.string());
  return lacking(error_of([&] { SafetensorsFile file(path); }), parts);
}

// The same for a file with this header and 8 bytes of data.
std::string lacking_with_header(const std::string& header, const std::vector<std::string>& parts) {
  return lacking_in_refusal(hand_made(header, std::string(8, '\0')), parts);
}

// The same for a file whose only tensor, "w", has this description and 8 bytes of data.
std::string lacking_with_entry(const std::string& entry, std::vector<std::string> parts) {
  parts.emplace_back("\"w\"");
  return lacking_with_header("{\"w\":" + entry + "}", parts);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(SafetensorsRefusal, TheFileThatOthersAreMadeFromIsFine) {
  const TestFolder folder;
  const std::string header = "{\"w\":" + entry("\"F32\"", "[2]", "[0,8]") + "}";
  const SafetensorsFile file(
      folder.write("good.safetensors", hand_made(header, std::string(8, '\0'))));
  EXPECT_TRUE(file.contains("w"));
}

TEST(SafetensorsRefusal, WhatIsNotAFile) {
  const TestFolder folder;
  const auto refusal = [&](const std::string& name) {
    return error_of([&] { SafetensorsFile file(folder / name); });
  };
  EXPECT_EQ(lacking(refusal("none.safetensors"), {"none.safetensors", "No such file"}), "");
  EXPECT_EQ(lacking(refusal("."), {"is not a regular file"}), "");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(lacking(refusal("pipe"), {"pipe", "is not a regular file"}), "");
}

TEST(SafetensorsRefusal, FilesThatAreTooShort) {
  EXPECT_EQ(lacking_in_refusal("", {"is empty"}), "");
  EXPECT_EQ(lacking_in_refusal("1234567", {"has 7 bytes", "8 bytes of length"}), "");
  const std::string whole =
      hand_made("{\"w\":" + entry("\"F32\"", "[2]", "[0,8]") + "}", "12345678");
  for (std::size_t size = 1; size < whole.size(); ++size) {
    const TestFolder folder;
    const auto path = folder.write("cut.safetensors", whole.substr(0, size));
    EXPECT_NE(error_of([&] { SafetensorsFile file(path); }), "") << size;
  }
  EXPECT_EQ(lacking_in_refusal(whole.substr(0, 30), {"claims a header", "but 22 follow"}), "");
  std::string too_long_by_one = hand_made("{}", "");
  too_long_by_one[0] = 3;
  EXPECT_EQ(lacking_in_refusal(too_long_by_one, {"a header of 3 bytes, but 2 follow"}), "");
  EXPECT_EQ(lacking_in_refusal(whole.substr(0, whole.size() - 1),
                               {"\"w\"", "[0, 8]", "after the 7 bytes", "cut short"}),
            "");
}

TEST(SafetensorsRefusal, HeadersOfAnAbsurdLength) {
  std::string bytes = hand_made("{}", "");
  bytes[3] = '\x7f';  // 2 GB
  EXPECT_EQ(lacking_in_refusal(bytes, {"claims a header of 2130706434", "100000000"}), "");
  bytes = std::string(8, '\xff') + "{}";
  EXPECT_EQ(lacking_in_refusal(bytes, {"18446744073709551615", "100000000"}), "");
  EXPECT_EQ(lacking_in_refusal(std::string(8, '\0'), {"does not begin with '{'"}), "");
}

TEST(SafetensorsRefusal, OtherKindsOfFiles) {
  EXPECT_EQ(
      lacking_in_refusal("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n",
                         {"Git LFS pointer", "git lfs pull"}),
      "");
  EXPECT_EQ(
      lacking_in_refusal("PK\x03\x04 the beginning of an archive", {"not a safetensors file"}), "");
}

TEST(SafetensorsRefusal, HeadersThatAreNotJson) {
  EXPECT_EQ(lacking_with_header("[]", {"does not begin with '{'"}), "");
  EXPECT_EQ(lacking_with_header("   {}", {"does not begin with '{'"}), "");
  EXPECT_EQ(lacking_with_header("{\"w\":", {"JSON is broken at byte"}), "");
  EXPECT_EQ(lacking_with_header("{} {}", {"JSON is broken at byte"}), "");
  EXPECT_EQ(lacking_with_header("{\"\xff\xfe\":1}", {"JSON is broken at byte"}), "");
  EXPECT_EQ(lacking_with_header("{\"w\":1e999}", {"number that is too large"}), "");
  EXPECT_EQ(lacking_with_header("{\"w\":[[[[1]]]]}", {"nested deeper"}), "");
  EXPECT_EQ(lacking_with_header("{\"w\":" + std::string(1'000'000, '['), {"nested deeper"}), "");
}

TEST(SafetensorsRefusal, KeysThatComeTwice) {
  const std::string tensor = entry("\"F32\"", "[1]", "[0,4]");
  EXPECT_EQ(
      lacking_with_header("{\"w\":" + tensor + ",\"w\":" + tensor + "}", {"the key \"w\" twice"}),
      "");
  // The same name, written in two ways.
  EXPECT_EQ(lacking_with_header("{\"w\":" + tensor + ",\"\\u0077\":" + tensor + "}",
                                {"the key \"w\" twice"}),
            "");
  EXPECT_EQ(lacking_with_header(
                "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}",
                {"the key \"shape\" twice"}),
            "");
}

TEST(SafetensorsRefusal, Metadata) {
  EXPECT_EQ(lacking_with_header("{\"__metadata__\":[]}", {"__metadata__", "not a JSON object"}),
            "");
  EXPECT_EQ(lacking_with_header("{\"__metadata__\":{\"epoch\":3}}", {"\"epoch\"", "is not a text"}),
            "");
  EXPECT_EQ(lacking_with_header("{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", {"\"a\" twice"}),
            "");
}

TEST(SafetensorsRefusal, EntriesThatAreIncomplete) {
  EXPECT_EQ(lacking_with_entry("3", {"has no \"dtype\""}), "");
  EXPECT_EQ(lacking_with_entry("{\"dtype\":\"F32\",\"shape\":[2]}", {"has no \"data_offsets\""}),
            "");
  EXPECT_EQ(lacking_with_entry("{\"dtype\":\"F32\",\"data_offsets\":[0,8]}", {"has no \"shape\""}),
            "");
  EXPECT_EQ(lacking_with_entry("{\"shape\":[2],\"data_offsets\":[0,8]}", {"has no \"dtype\""}), "");
}

TEST(SafetensorsRefusal, Dtypes) {
  EXPECT_EQ(lacking_with_entry(entry("\"F8_E4M3\"", "[8]", "[0,8]"),
                               {"\"F8_E4M3\"", "F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL"}),
            "");
  EXPECT_EQ(lacking_with_entry(entry("\"f32\"", "[2]", "[0,8]"), {"\"f32\""}), "");
  EXPECT_EQ(lacking_with_entry(entry("32", "[2]", "[0,8]"), {"dtype is not a text"}), "");
  // A message is safe to print whatever a file is called or says.
  EXPECT_EQ(lacking_with_entry(entry("\"\\u001b[31m\"", "[2]", "[0,8]"), {"\"\\u001b[31m\""}), "");
  EXPECT_EQ(lacking_with_entry(entry("\"\\u009b[31m\"", "[2]", "[0,8]"), {"\"\\u009b[31m\""}), "");
}

TEST(SafetensorsRefusal, Shapes) {
  const std::string whole_number = "not a whole number";
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[-2]", "[0,8]"), {"shape", whole_number}), "");
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[2.0]", "[0,8]"), {"shape", whole_number}), "");
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[\"2\"]", "[0,8]"), {"shape", whole_number}), "");
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[null]", "[0,8]"), {"shape", whole_number}), "");
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[18446744073709551615]", "[0,8]"),
                               {"shape", whole_number}),
            "");
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "2", "[0,8]"), {"shape is not a list"}), "");
  // Products that wrap around to 8 bytes, to 0, and that only a dimension of 0 hides.
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[4611686018427387906,1]", "[0,8]"), {"63 bits"}),
            "");
  EXPECT_EQ(lacking_with_entry(entry("\"U8\"", "[4294967296,4294967296]", "[0,0]"), {"63 bits"}),
            "");
  EXPECT_EQ(lacking_with_entry(entry("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), {"63 bits"}),
            "");
  std::string ones = "[2";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", ones + "]", "[0,8]"), {"65 dimensions", "64"}), "");
}

TEST(SafetensorsRefusal, Offsets) {
  const auto lacking_with_offsets = [](const std::string& offsets, std::vector<std::string> parts) {
    return lacking_with_entry(entry("\"F32\"", "[2]", offsets), parts);
  };
  EXPECT_EQ(lacking_with_offsets("[0]", {"1 data_offsets", "must be 2"}), "");
  EXPECT_EQ(lacking_with_offsets("[0,4,8]", {"3 data_offsets"}), "");
  EXPECT_EQ(lacking_with_offsets("8", {"data_offsets is not a list"}), "");
  EXPECT_EQ(lacking_with_offsets("[0,8.0]", {"data_offsets", "whole number"}), "");
  EXPECT_EQ(lacking_with_offsets("[-8,0]", {"data_offsets", "whole number"}), "");
  EXPECT_EQ(lacking_with_offsets("[8,0]", {"[8, 0]", "backwards"}), "");
  EXPECT_EQ(lacking_with_offsets("[8,16]", {"[8, 16]", "after the 8 bytes"}), "");
  EXPECT_EQ(lacking_with_offsets("[0,9223372036854775807]", {"after the 8 bytes"}), "");
  EXPECT_EQ(lacking_with_offsets("[0,18446744073709551615]", {"whole number"}), "");
  EXPECT_EQ(lacking_with_offsets("[0,4]", {"[0, 4]", "span 4 bytes", "F32 [2] takes 8"}), "");
  EXPECT_EQ(lacking_with_offsets("[0,7]", {"span 7 bytes", "takes 8"}), "");
  EXPECT_EQ(lacking_with_entry(entry("\"F32\"", "[1]", "[0,8]"), {"span 8 bytes", "takes 4"}), "");
}

TEST(SafetensorsRefusal, TensorsThatOverlapOrLeaveHoles) {
  const auto pair = [](const std::string& first, const std::string& second) {
    return "{\"a\":" + entry("\"U8\"", "[4]", first) + ",\"b\":" + entry("\"U8\"", "[4]", second) +
           "}";
  };
  EXPECT_EQ(lacking_with_header(pair("[0,4]", "[2,6]"), {"\"b\"", "at byte 2", "ends at 4"}), "");
  EXPECT_EQ(lacking_with_header(pair("[0,4]", "[0,4]"), {"\"b\"", "at byte 0", "overlap"}), "");
  EXPECT_EQ(lacking_with_header("{\"b\":" + entry("\"U8\"", "[4]", "[4,8]") + "}",
                                {"\"b\"", "at byte 4", "ends at 0", "holes"}),
            "");
  EXPECT_EQ(lacking_with_header("{\"a\":" + entry("\"U8\"", "[1]", "[0,1]") +
                                    ",\"b\":" + entry("\"U8\"", "[6]", "[2,8]") + "}",
                                {"\"b\"", "at byte 2", "ends at 1"}),
            "");
  // Bytes that belong to nobody, at the end.
  EXPECT_EQ(lacking_with_header("{\"w\":" + entry("\"F32\"", "[1]", "[0,4]") + "}",
                                {"8 bytes follow the header", "its tensors take 4"}),
            "");
  EXPECT_EQ(lacking_with_header("{}", {"8 bytes follow the header", "take 0"}), "");
  // An empty tensor has a place too.
  EXPECT_EQ(lacking_with_header("{\"a\":" + entry("\"U8\"", "[8]", "[0,8]") +
                                    ",\"none\":" + entry("\"U8\"", "[0]", "[5,5]") + "}",
                                {"\"none\"", "at byte 5"}),
            "");
}

TEST(SafetensorsRefusal, ABoolOfTwo) {
  const TestFolder folder;
  const std::string header = "{\"mask\":" + entry("\"BOOL\"", "[2]", "[0,2]") + "}";
  const auto path = folder.write("bool.safetensors", hand_made(header, "\x01\x02"));
  const SafetensorsFile file(path);
  EXPECT_EQ(
      lacking(error_of([&] { file.read("mask"); }), {path.string(), "\"mask\"", "neither 0 nor 1"}),
      "");
}

}  // namespace
}  // namespace zero::io

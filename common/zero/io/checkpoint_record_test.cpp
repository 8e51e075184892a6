// What checkpoint.json says of a checkpoint, and that no altered one is taken for one.

#include <nlohmann/json.hpp>

#include <tests/support/error_of.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_record.hpp>

namespace zero::io::checkpoint {
namespace {

using testing::expect_error;

Record example() {
  Record r;
  r.folder = "step-000000007";
  r.info.step = 7;
  r.info.mode = "tensor_zero3:per_parameter";
  r.info.sampler = {{"seed", 0xffffffffffffffffU}, {"step", 7}};
  r.info.random = "\"quoted\"\n";
  r.info.notes = {{"data", "a text"}};
  r.info.world_size = 2;
  r.info.optimizer = {"AdamW", {{{"learning_rate", 0.1}, {"beta1", 0.9}}}};
  r.files = {{"rank-00000-of-00002.safetensors", 100, std::string(64, 'a')},
             {"rank-00001-of-00002.safetensors", 200, std::string(64, 'b')}};
  return r;
}

TEST(CheckpointRecord, SurvivesItsText) {
  const Record r = example();
  const Record read = record_from(to_text(r), "r");
  EXPECT_EQ(to_text(read), to_text(r));
  EXPECT_EQ(read.info.sampler, r.info.sampler);
  EXPECT_EQ(read.info.optimizer.groups, r.info.optimizer.groups);
  EXPECT_EQ(read.info.random, r.info.random);
  EXPECT_EQ(read.info.notes, r.info.notes);
  ASSERT_EQ(read.files.size(), 2U);
  EXPECT_EQ(read.files[1].name, r.files[1].name);
  EXPECT_EQ(read.files[1].bytes, 200);
}

TEST(CheckpointRecord, EveryFlippedBitAndEveryLengthIsRefused) {
  const std::string text = to_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_THROW(record_from(text.substr(0, i), "r"), Error) << "cut to " << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_THROW(record_from(other, "r"), Error) << "byte " << i << " bit " << bit;
    }
  }
  EXPECT_THROW(record_from(text + " ", "r"), Error);
}

// What only another program would write.
TEST(CheckpointRecord, WhatNoRunWritesIsRefused) {
  using Change = std::function<void(nlohmann::json&)>;
  const auto read_after = [](const Change& change) {
    nlohmann::json j = nlohmann::json::parse(to_text(example()));
    j.erase("sha256 of the rest");
    change(j);
    j["sha256 of the rest"] = base::Sha256().add(j.dump(1) + "\n").hex();
    record_from(j.dump(1) + "\n", "r");
  };
  EXPECT_NO_THROW(read_after([](auto&) {}));
  const std::string not_whole = "r: holds a number that is not whole";
  const std::vector<std::pair<Change, std::string>> rows = {
      {[](auto& j) { j["run"]["step"] = 7.5; }, not_whole},
      {[](auto& j) { j["run"]["step"] = 7.0; }, not_whole},
      {[](auto& j) { j["run"]["sampler"]["step"] = 7.5; }, not_whole},
      {[](auto& j) { j["run"]["sampler"]["seed"] = -1; }, not_whole},
      // 2^32 + 2 would become 2 where it is cut off to 32 bits.
      {[](auto& j) { j["run"]["world_size"] = (std::int64_t{1} << 32) + 2; }, not_whole},
      {[](auto& j) { j["files"][0]["bytes"] = 1.5; }, not_whole},
      {[](auto& j) { j["later"] = 1; }, not_whole},
      {[](auto& j) { j["files"] = 2; }, "lacks something, or it has another type"},
      {[](auto& j) { j["version"] = 1; }, "r: has format version 1, this program reads version 2"},
      {[](auto& j) { j["run"]["step"] = -1; }, "r: the step is -1; it must be from 0 to 2814749"},
      {[](auto& j) { j["files"][0]["name"] = "../elsewhere"; }, "is not the name of a file beside"},
      {[](auto& j) { j["files"] = nlohmann::json::array(); }, "r: names no file"},
      {[](auto& j) { j["folder"] = ""; }, "is not the name of a file beside"}};
  for (const auto& row : rows) expect_error([&] { read_after(row.first); }, {row.second});
}

TEST(CheckpointRecord, IsNotNestedSoDeeplyThatTheStackIsUsedUp) {
  const std::string deep =
      R"({"format": "zero checkpoint", "version": 2, "more": )" + testing::nested_json() + "}";
  expect_error([&] { record_from(deep, "r"); }, {"r: its JSON is nested deeper than 64 levels"});
}

}  // namespace
}  // namespace zero::io::checkpoint

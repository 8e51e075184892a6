// Folders of several files with an index.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/safetensors.hpp>

namespace zero::io {
namespace {

using testing::error_of;
using testing::lacking;
using testing::same_bits;
using testing::TestFolder;

using Listing = std::vector<std::string>;

constexpr const char* kIndex = "model.safetensors.index.json";

// The index of a folder, as text that a test changes.
std::string index_with(const std::string& weight_map) {
  return R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}";
}

class SafetensorsFolders : public ::testing::Test {
 protected:
  SafetensorsFolders() {
    for (int i = 0; i < 7; ++i) {
      tensors_.emplace_back("layer." + std::to_string(i), at::randn({10}));  // 40 bytes each
    }
  }

  // What the refusal of the folder, with this weight_map, lacks of `parts`.
  std::string lacking_with_map(const std::string& weight_map, const Listing& parts) const {
    folder_.write(kIndex, index_with(weight_map));
    return lacking(error_of([&] { SafetensorsFolder weights(folder_.path()); }), parts);
  }

  void expect_all_tensors(const std::filesystem::path& path) const {
    const SafetensorsFolder weights(path);
    EXPECT_EQ(weights.names().size(), tensors_.size());
    for (const auto& [name, tensor] : tensors_) {
      EXPECT_TRUE(weights.contains(name));
      EXPECT_EQ(weights.info(name).bytes(), 40);
      EXPECT_TRUE(same_bits(weights.read(name), tensor)) << name;
      const at::Tensor out = at::zeros({10}, at::kDouble);
      weights.read_into(name, out);
      EXPECT_TRUE(same_bits(out, tensor.to(at::kDouble))) << name;
    }
  }

  TestFolder folder_;
  NamedTensors tensors_;
};

TEST_F(SafetensorsFolders, OneFileWhereAllFits) {
  save_safetensors_folder(folder_.path(), tensors_, /*max_bytes=*/280);
  EXPECT_EQ(folder_.listing(), Listing{"model.safetensors"});
  expect_all_tensors(folder_.path());
  expect_all_tensors(folder_ / "model.safetensors");
  EXPECT_EQ(SafetensorsFolder(folder_.path()).metadata(), (SafetensorsMetadata{{"format", "pt"}}));
}

TEST_F(SafetensorsFolders, SeveralFilesAndAnIndexWhereNot) {
  save_safetensors_folder(folder_.path(), tensors_, /*max_bytes=*/120);
  EXPECT_EQ(folder_.listing(),
            (Listing{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                     "model-00003-of-00003.safetensors", kIndex}));
  expect_all_tensors(folder_.path());
  EXPECT_EQ(SafetensorsFolder(folder_.path()).names().front(), "layer.0");
  EXPECT_EQ(SafetensorsFile(folder_ / "model-00002-of-00003.safetensors").names(),
            (Listing{"layer.3", "layer.4", "layer.5"}));
}

TEST_F(SafetensorsFolders, TheIndexIsTheTextThatTransformersWrites) {
  save_safetensors_folder(folder_.path(), {{"b", at::ones({4})}, {"a", at::ones({2}, at::kHalf)}},
                          /*max_bytes=*/16);
  EXPECT_EQ(testing::read_bytes(folder_ / kIndex),
            R"({
  "metadata": {
    "total_parameters": 6,
    "total_size": 20
  },
  "weight_map": {
    "a": "model-00002-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors"
  }
}
)");
}

TEST_F(SafetensorsFolders, ATensorThatIsTooLargeGetsAFileOfItsOwn) {
  save_safetensors_folder(folder_.path(),
                          {{"a", at::ones({5})}, {"large", at::ones({100})}, {"b", at::ones({5})}},
                          /*max_bytes=*/40);
  EXPECT_EQ(SafetensorsFile(folder_ / "model-00001-of-00002.safetensors").names(),
            Listing{"large"});
  EXPECT_EQ(SafetensorsFile(folder_ / "model-00002-of-00002.safetensors").names(),
            (Listing{"a", "b"}));
}

TEST_F(SafetensorsFolders, TensorsAreStreamedInAnyOrder) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors_) specs.push_back({name, at::kFloat, {10}});
  SafetensorsFolderWriter writer(folder_ / "new/folder", specs, /*max_bytes=*/80);
  for (auto it = tensors_.rbegin(); it != tensors_.rend(); ++it)
    writer.write(it->first, it->second);
  writer.finish();
  expect_all_tensors(folder_ / "new/folder");
}

TEST_F(SafetensorsFolders, ANewSaveReplacesAnOldOneWhole) {
  folder_.write("config.json", "{}");
  folder_.write("model-notes.safetensors.txt", "not weights");
  const auto listing_after = [&](std::int64_t max_bytes) {
    save_safetensors_folder(folder_.path(), tensors_, max_bytes);
    expect_all_tensors(folder_.path());
    return folder_.listing().size() - 2;
  };
  EXPECT_EQ(listing_after(40), 7 + 1);
  EXPECT_EQ(listing_after(120), 3 + 1);
  EXPECT_EQ(listing_after(1000), 1);
  EXPECT_EQ(listing_after(120), 3 + 1);
  EXPECT_EQ(listing_after(120), 3 + 1);
}

TEST_F(SafetensorsFolders, AnUnfinishedSaveLeavesTheOldOne) {
  save_safetensors_folder(folder_.path(), tensors_, /*max_bytes=*/120);
  const Listing before = folder_.listing();
  {
    SafetensorsFolderWriter writer(folder_.path(), {{"x", at::kFloat, {4}}, {"y", at::kFloat, {4}}},
                                   /*max_bytes=*/16);
    writer.write("x", at::ones({4}));
    EXPECT_EQ(lacking(error_of([&] { writer.finish(); }), {"1 of 1 tensors", "\"y\""}), "");
    EXPECT_EQ(
        lacking(error_of([&] { writer.write("z", at::ones({4})); }), {"\"z\"", "among its 2"}), "");
  }
  EXPECT_EQ(folder_.listing(), before);
  expect_all_tensors(folder_.path());
}

TEST_F(SafetensorsFolders, ASaveIsFinishedOnceNothingIsMissing) {
  SafetensorsFolderWriter writer(folder_.path(), {{"x", at::kFloat, {4}}, {"y", at::kFloat, {4}}},
                                 /*max_bytes=*/16);
  writer.write("x", at::ones({4}));
  EXPECT_NE(error_of([&] { writer.finish(); }), "");
  writer.write("y", at::ones({4}));
  writer.finish();
  EXPECT_EQ(SafetensorsFolder(folder_.path()).names(), (Listing{"x", "y"}));
}

TEST_F(SafetensorsFolders, SavesThatAreRefused) {
  const auto refusal = [&](const std::string& name, const NamedTensors& tensors, std::int64_t max) {
    return error_of([&] { save_safetensors_folder(folder_ / name, tensors, max); });
  };
  folder_.write("file", "");
  EXPECT_EQ(lacking(refusal("w", tensors_, 0), {"at most 0 bytes", "1 or more"}), "");
  EXPECT_EQ(lacking(refusal("file", tensors_, 40), {"file", "cannot be made a folder"}), "");
  // Twice the same name, in two files.
  EXPECT_EQ(lacking(refusal("w", {{"a", at::ones({9})}, {"a", at::ones({9})}}, 40),
                    {"\"a\"", "given twice"}),
            "");
  EXPECT_EQ(folder_.listing(), Listing{"file"});
}

TEST_F(SafetensorsFolders, FoldersWithoutWeights) {
  const auto refusal = [&](const std::filesystem::path& path) {
    return error_of([&] { SafetensorsFolder weights(path); });
  };
  EXPECT_EQ(
      lacking(refusal(folder_.path()), {folder_.path().string(), "model.safetensors", kIndex}), "");
  EXPECT_EQ(lacking(refusal(folder_ / "none"), {"none", "No such file"}), "");
}

TEST_F(SafetensorsFolders, TheSingleFileIsPreferredAsInTransformers) {
  save_safetensors(folder_ / "model.safetensors", {{"w", at::ones({2})}});
  folder_.write(kIndex, "not read");
  EXPECT_EQ(SafetensorsFolder(folder_.path()).names(), Listing{"w"});
}

TEST_F(SafetensorsFolders, IndexesThatAreNotOne) {
  const auto lacking_with = [&](const std::string& text, const Listing& parts) {
    folder_.write(kIndex, text);
    return lacking(error_of([&] { SafetensorsFolder weights(folder_.path()); }), parts);
  };
  EXPECT_EQ(lacking_with("", {kIndex, "JSON is broken"}), "");
  EXPECT_EQ(lacking_with("[]", {kIndex, "not an object"}), "");
  EXPECT_EQ(lacking_with("{}", {kIndex, "weight_map"}), "");
  EXPECT_EQ(lacking_with(R"({"weight_map":[]})", {kIndex, "weight_map"}), "");
  EXPECT_EQ(lacking_with(R"({"weight_map":{}})", {kIndex, "weight_map"}), "");
  EXPECT_EQ(lacking_with(R"({"weight_map":{"a":1}})", {kIndex, "\"a\"", "not a text"}), "");
  std::filesystem::remove(folder_ / kIndex);
  std::filesystem::create_directory(folder_ / kIndex);
  EXPECT_EQ(lacking(error_of([&] { SafetensorsFolder weights(folder_.path()); }),
                    {kIndex, "cannot be read"}),
            "");
}

TEST_F(SafetensorsFolders, IndexesThatLie) {
  save_safetensors(folder_ / "one.safetensors", {{"a", at::ones({2})}, {"b", at::ones({2})}});
  save_safetensors(folder_ / "two.safetensors", {{"c", at::ones({2})}, {"b", at::ones({2})}});
  EXPECT_EQ(lacking_with_map(R"({"a":"one.safetensors","b":"one.safetensors"})", {"was no error"}),
            "there was no error");
  EXPECT_EQ(lacking_with_map(R"({"a":"three.safetensors"})",
                             {kIndex, "\"three.safetensors\"", "not in the folder"}),
            "");
  EXPECT_EQ(
      lacking_with_map(R"({"a":"one.safetensors","b":"one.safetensors","d":"one.safetensors"})",
                       {kIndex, "\"d\"", "one.safetensors", "but it is not"}),
      "");
  EXPECT_EQ(lacking_with_map(R"({"a":"one.safetensors"})", {"one.safetensors", "\"b\"", kIndex}),
            "");
  EXPECT_EQ(
      lacking_with_map(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})",
                       {"two.safetensors", "\"b\"", "is also in", "one.safetensors"}),
      "");
  for (const char* file : {"../one.safetensors", "/one.safetensors", "..", ".", "", "x/one"}) {
    EXPECT_EQ(lacking_with_map(std::string(R"({"a":")") + file + "\"}", {kIndex, "\"a\""}), "")
        << file;
  }
}

TEST_F(SafetensorsFolders, ABrokenFileIsNamed) {
  save_safetensors_folder(folder_.path(), tensors_, /*max_bytes=*/120);
  std::filesystem::resize_file(folder_ / "model-00002-of-00003.safetensors", 100);
  EXPECT_EQ(lacking(error_of([&] { SafetensorsFolder weights(folder_.path()); }),
                    {"model-00002-of-00003.safetensors", "cut short"}),
            "");
  EXPECT_EQ(
      lacking(error_of([&] {
                SafetensorsFolder(folder_ / "model-00003-of-00003.safetensors").read("layer.0");
              }),
              {"model-00003-of-00003.safetensors", "\"layer.0\""}),
      "");
}

}  // namespace
}  // namespace zero::io

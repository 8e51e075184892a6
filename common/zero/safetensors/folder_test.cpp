// Folders of several files with an index.

#include <tests/support/safetensors_test_files.hpp>
#include <tests/support/save_safetensors_folder.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::safetensors {
namespace {

using testing::expect_error;
using testing::same_bits;
using testing::save_safetensors_folder;
using testing::TestFolder;

using Listing = std::vector<std::string>;

constexpr const char* kIndex = "model.safetensors.index.json";

class SafetensorsFolders : public ::testing::Test {
 protected:
  SafetensorsFolders() {
    for (int i = 0; i < 7; ++i) {
      tensors_.emplace_back("layer." + std::to_string(i), at::randn({10}));  // 40 bytes each
    }
  }

  // Expects that the folder is refused with this text as its index.
  void expect_index_refused(const std::string& text, const std::vector<std::string>& parts,
                            std::source_location where = std::source_location::current()) const {
    folder_.write(kIndex, text);
    expect_error([&] { Folder weights(folder_.path()); }, parts, where);
  }

  void expect_all_tensors(const std::filesystem::path& path) const {
    const Folder weights(path);
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
  EXPECT_EQ(File(folder_ / "model.safetensors").metadata(), (Metadata{{"format", "pt"}}));
}

TEST_F(SafetensorsFolders, SeveralFilesAndAnIndexWhereNot) {
  save_safetensors_folder(folder_.path(), tensors_, /*max_bytes=*/120);
  EXPECT_EQ(folder_.listing(),
            (Listing{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                     "model-00003-of-00003.safetensors", kIndex}));
  expect_all_tensors(folder_.path());
  EXPECT_EQ(Folder(folder_.path()).names().front(), "layer.0");
  EXPECT_EQ(File(folder_ / "model-00002-of-00003.safetensors").names(),
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
  EXPECT_EQ(File(folder_ / "model-00001-of-00002.safetensors").names(), Listing{"large"});
  EXPECT_EQ(File(folder_ / "model-00002-of-00002.safetensors").names(), (Listing{"a", "b"}));
}

TEST_F(SafetensorsFolders, TensorsAreStreamedInAnyOrder) {
  std::vector<Spec> specs;
  for (const auto& [name, tensor] : tensors_) specs.push_back({name, at::kFloat, {10}});
  FolderWriter writer(folder_ / "new/folder", specs, /*max_bytes=*/80);
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
    FolderWriter writer(folder_.path(), {{"x", at::kFloat, {4}}, {"y", at::kFloat, {4}}},
                        /*max_bytes=*/16);
    writer.write("x", at::ones({4}));
    expect_error([&] { writer.finish(); }, {"1 of 1 tensors", "\"y\""});
    expect_error([&] { writer.write("z", at::ones({4})); }, {"\"z\"", "among its 2"});
  }
  EXPECT_EQ(folder_.listing(), before);
  expect_all_tensors(folder_.path());
}

TEST_F(SafetensorsFolders, ASaveIsFinishedOnceNothingIsMissing) {
  FolderWriter writer(folder_.path(), {{"x", at::kFloat, {4}}, {"y", at::kFloat, {4}}},
                      /*max_bytes=*/16);
  writer.write("x", at::ones({4}));
  expect_error([&] { writer.finish(); }, {"\"y\""});
  writer.write("y", at::ones({4}));
  writer.finish();
  EXPECT_EQ(Folder(folder_.path()).names(), (Listing{"x", "y"}));
}

TEST_F(SafetensorsFolders, SavesThatAreRefused) {
  const auto save = [&](const std::string& name, const NamedTensors& tensors, std::int64_t max) {
    return [&, name, tensors, max] { save_safetensors_folder(folder_ / name, tensors, max); };
  };
  folder_.write("file", "");
  expect_error(save("file", tensors_, 40), {"file", "cannot be made a folder"});
  // Twice the same name, in two files.
  const NamedTensors twice = {{"a", at::ones({9})}, {"a", at::ones({9})}};
  expect_error(save("w", twice, 40), {"\"a\"", "given twice"});
  EXPECT_EQ(folder_.listing(), Listing{"file"});
}

TEST_F(SafetensorsFolders, FoldersWithoutWeights) {
  expect_error([&] { Folder weights(folder_.path()); },
               {folder_.path().string(), "model.safetensors", kIndex});
  expect_error([&] { Folder weights(folder_ / "none"); }, {"none", "No such file"});
}

TEST_F(SafetensorsFolders, TheSingleFileIsPreferredAsInTransformers) {
  save(folder_ / "model.safetensors", {{"w", at::ones({2})}});
  folder_.write(kIndex, "not read");
  EXPECT_EQ(Folder(folder_.path()).names(), Listing{"w"});
}

TEST_F(SafetensorsFolders, IndexesThatAreNotOne) {
  expect_index_refused("", {kIndex, "is empty"});
  expect_index_refused("[]", {kIndex, "not an object"});
  for (const char* text : {"{}", R"({"weight_map":[]})", R"({"weight_map":{}})"}) {
    expect_index_refused(text, {kIndex, "weight_map"});
  }
  expect_index_refused(R"({"weight_map":{"a":1}})", {kIndex, "\"a\"", "not the name of a file"});
  std::filesystem::remove(folder_ / kIndex);
  std::filesystem::create_directory(folder_ / kIndex);
  expect_error([&] { Folder weights(folder_.path()); }, {kIndex, "is not a regular file"});
}

TEST_F(SafetensorsFolders, IndexesThatLie) {
  save(folder_ / "one.safetensors", {{"a", at::ones({2})}, {"b", at::ones({2})}});
  save(folder_ / "two.safetensors", {{"c", at::ones({2})}, {"b", at::ones({2})}});
  const auto index = [](const std::string& weight_map) {
    return R"({"metadata":{"total_size":1},"weight_map":{)" + weight_map + "}}";
  };
  const std::string right = R"("a":"one.safetensors","b":"one.safetensors")";
  folder_.write(kIndex, index(right));
  EXPECT_NO_THROW(Folder weights(folder_.path()));
  expect_index_refused(index(R"("a":"three.safetensors")"),
                       {kIndex, "\"three.safetensors\"", "not in the folder"});
  expect_index_refused(index(right + R"(,"d":"one.safetensors")"),
                       {kIndex, "\"d\"", "one.safetensors", "but it is not"});
  expect_index_refused(index(R"("a":"one.safetensors")"), {"one.safetensors", "\"b\"", kIndex});
  expect_index_refused(index(right + R"(,"c":"two.safetensors")"),
                       {"two.safetensors", "\"b\"", "is also in", "one.safetensors"});
  for (const char* file : {"../one.safetensors", "/one.safetensors", "..", ".", "", "x/one"}) {
    SCOPED_TRACE(file);
    expect_index_refused(index(std::string(R"("a":")") + file + "\""), {kIndex, "\"a\""});
  }
}

TEST_F(SafetensorsFolders, ABrokenFileIsNamed) {
  save_safetensors_folder(folder_.path(), tensors_, /*max_bytes=*/120);
  std::filesystem::resize_file(folder_ / "model-00002-of-00003.safetensors", 100);
  expect_error([&] { Folder weights(folder_.path()); },
               {"model-00002-of-00003.safetensors", "cut short"});
  expect_error([&] { Folder(folder_ / "model-00003-of-00003.safetensors").read("layer.0"); },
               {"model-00003-of-00003.safetensors", "\"layer.0\""});
}

}  // namespace
}  // namespace zero::safetensors

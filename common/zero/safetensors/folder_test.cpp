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

TEST_F(SafetensorsFolders, OfOneFileAreReadAsTheFileIs) {
  save_safetensors_folder(folder_.path(), tensors_);
  expect_all_tensors(folder_.path());
  expect_all_tensors(folder_ / "model.safetensors");
}

TEST_F(SafetensorsFolders, OfSeveralFilesAreReadByTheirIndex) {
  save_safetensors_folder(folder_.path(), tensors_, /*per_file=*/3);
  EXPECT_EQ(folder_.listing(),
            (Listing{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                     "model-00003-of-00003.safetensors", kIndex}));
  expect_all_tensors(folder_.path());
  const Folder weights(folder_.path());
  EXPECT_EQ(weights.names().front(), "layer.0");
  EXPECT_EQ(weights.file_of("layer.5"), folder_ / "model-00002-of-00003.safetensors");
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
  expect_index_refused(index(right + R"(,"c":"two.safetensors")"),
                       {"two.safetensors", "\"b\"", "is also in", "one.safetensors"});
  for (const char* file : {"../one.safetensors", "/one.safetensors", "..", ".", "", "x/one"}) {
    SCOPED_TRACE(file);
    expect_index_refused(index(std::string(R"("a":")") + file + "\""), {kIndex, "\"a\""});
  }
}

TEST_F(SafetensorsFolders, ABrokenFileIsNamed) {
  save_safetensors_folder(folder_.path(), tensors_, /*per_file=*/3);
  std::filesystem::resize_file(folder_ / "model-00002-of-00003.safetensors", 100);
  expect_error([&] { Folder weights(folder_.path()); },
               {"model-00002-of-00003.safetensors", "cut short"});
  expect_error([&] { Folder(folder_ / "model-00003-of-00003.safetensors").read("layer.0"); },
               {"model-00003-of-00003.safetensors", "\"layer.0\""});
}

}  // namespace
}  // namespace zero::safetensors

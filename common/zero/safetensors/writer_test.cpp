// The writer's rules, and that a failed save leaves nothing behind.

#include <tests/support/safetensors_test_files.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::safetensors {
namespace {

using testing::expect_error;
using testing::FullDisk;
using testing::same_bits;
using testing::TestFolder;

using Listing = std::vector<std::string>;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

class SafetensorsWrite : public ::testing::Test {
 protected:
  Writer writer(const std::vector<Spec>& specs) const { return {path_, specs, /*metadata=*/{}}; }
  // Expects that a writer of these tensors is refused by its path and `parts`.
  void expect_refused(const std::vector<Spec>& specs, Listing parts,
                      std::source_location where = std::source_location::current()) const {
    parts.push_back(path_.string());
    expect_error([&] { writer(specs); }, parts, where);
  }

  TestFolder folder_;
  std::filesystem::path path_ = folder_ / "x.safetensors";
};

TEST_F(SafetensorsWrite, EveryTensorIsAligned) {
  std::vector<Spec> specs;
  for (const at::ScalarType dtype : testing::kAllDtypes) {
    specs.insert(specs.begin(), {c10::toString(dtype), dtype, {3}});
  }
  Writer file = writer(specs);
  for (const auto& spec : specs) file.write(spec.name, at::zeros(spec.shape, spec.dtype));
  file.finish();
  const std::string bytes = testing::read_bytes(path_);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  EXPECT_EQ(header % 8, 0);
  const File read(path_);
  for (const auto& name : read.names()) {
    const auto& info = read.info(name);
    EXPECT_EQ(info.begin % static_cast<std::int64_t>(c10::elementSize(info.dtype)), 0) << name;
  }
}

TEST_F(SafetensorsWrite, SpecsThatAreRefused) {
  expect_refused({{"w", at::kFloat, {1}}, {"w", at::kFloat, {1}}}, {"\"w\"", "given twice"});
  expect_refused({{"__metadata__", at::kFloat, {1}}}, {"taken by the format"});
  expect_refused({{"z", at::kComplexFloat, {1}}}, {"\"z\"", "ComplexFloat", "BF16"});
  EXPECT_EQ(folder_.listing(), Listing{});
}

TEST_F(SafetensorsWrite, WritesThatAreRefused) {
  Writer file = writer({{"w", at::kFloat, {2}}, {"ids", at::kInt, {2}}});
  const std::string path = path_.string();
  const auto write = [&](const std::string& name, const at::Tensor& tensor) {
    return [&, name, tensor] { file.write(name, tensor); };
  };
  expect_error(write("idx", at::ones({2})), {path, "\"idx\"", "among its 2: \"ids\" \"w\""});
  expect_error(write("w", at::ones({3})), {path, "\"w\"", "[3]", "[2]"});
  expect_error(write("w", at::ones({2}, at::kInt)), {path, "\"w\"", "Int", "Float"});
  expect_error(write("ids", at::ones({2}, at::kLong)), {path, "\"ids\"", "Long", "Int"});
  file.write("w", at::ones({2}));
  expect_error([&] { file.finish(); }, {path, "1 of 2 tensors", "\"ids\""});
  file.write("ids", at::ones({2}, at::kInt));
  file.finish();
  expect_error([&] { file.finish(); }, {path, "cannot"});
  expect_error(write("w", at::ones({2})), {path, "cannot be written"});
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
}

TEST_F(SafetensorsWrite, TensorsWithoutValuesAreRefusedByName) {
  const at::Tensor right = at::ones({4, 4}), short_of_bytes = at::ones({4, 4});
  short_of_bytes.storage().unsafeGetStorageImpl()->set_nbytes(60);
  save(path_, {{"w", right}});
  for (const at::Tensor& wrong :
       {at::Tensor(), right.to(at::kMeta), right.to_sparse(), short_of_bytes}) {
    expect_error(
        [&] {
          save(path_, {{"right", right}, {"w", wrong}});
        },
        {path_.string(), "tensor \"w\": "});
    Writer file = writer({{"w", at::kFloat, {4, 4}}});
    expect_error([&] { file.write("w", wrong); }, {path_.string(), "tensor \"w\": "});
    expect_error([&] { File(path_).read_into("w", wrong); }, {path_.string(), "tensor \"w\": "});
  }
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
  // Views may lie anywhere in their storage.
  const at::Tensor row = at::arange(12).view({3, 4})[2];
  save(path_, {{"row", row}, {"wide", row.expand({5, 4})}, {"none", at::empty({0, 3})}});
  EXPECT_TRUE(same_bits({File(path_).read("row")}, {row}));
}

TEST_F(SafetensorsWrite, TwoWritersOfOneFileDoNotMix) {
  Writer first = writer({{"w", at::kFloat, {2}}});
  Writer second = writer({{"w", at::kFloat, {2}}});
  first.write("w", at::ones({2}));
  second.write("w", at::zeros({2}));
  first.finish();
  EXPECT_TRUE(same_bits(File(path_).read("w"), at::ones({2})));
  second.finish();
  EXPECT_TRUE(same_bits(File(path_).read("w"), at::zeros({2})));
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
}

TEST_F(SafetensorsWrite, AFullDiskIsNoticedBeforeTheFirstTensor) {
  const FullDisk full(kMebibyte);
  expect_refused({{"w", at::kByte, {2 * kMebibyte}}}, {"cannot be", "File too large"});
  EXPECT_EQ(folder_.listing(), Listing{});
  // A smaller one fits.
  Writer file = writer({{"w", at::kByte, {kMebibyte / 2}}});
}

TEST_F(SafetensorsWrite, ADiskThatRefusesLaterLeavesTheOldFile) {
  save(path_, {{"old", at::ones({2})}});
  {
    Writer file = writer({{"w", at::kByte, {4 * kMebibyte}}});
    const FullDisk full(kMebibyte);
    expect_error([&] { file.write("w", at::ones({4 * kMebibyte}, at::kByte)); },
                 {path_.string(), "cannot be written", "File too large"});
    expect_error([&] { file.finish(); }, {"1 of 1 tensors were not written"});
  }
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
  EXPECT_TRUE(File(path_).contains("old"));
}

TEST_F(SafetensorsWrite, PlacesThatCannotBeWritten) {
  const auto save_at = [](const std::filesystem::path& path) {
    return [path] { save(path, {{"w", at::ones({2})}}); };
  };
  folder_.write("file", "");
  expect_error(save_at(folder_ / "none/x.safetensors"), {"none/x.safetensors", "No such"});
  expect_error(save_at(folder_ / "file/x.safetensors"), {"Not a directory"});
  expect_error(save_at(folder_.path()), {folder_.path().string(), "names a folder"});
  expect_error(save_at(""), {"names a folder"});
  EXPECT_EQ(folder_.listing(), Listing{"file"});
}

}  // namespace
}  // namespace zero::safetensors

// The writer's rules, and that a failed save leaves nothing behind.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/safetensors.hpp>

namespace zero::io {
namespace {

using testing::error_of;
using testing::lacking;
using testing::same_bits;
using testing::TestFolder;

using Listing = std::vector<std::string>;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

class SafetensorsWrite : public ::testing::Test {
 protected:
  SafetensorsWriter writer(const std::vector<SafetensorsSpec>& specs,
                           const SafetensorsMetadata& metadata = {}) const {
    return {path_, specs, metadata};
  }
  // The message with which a writer of these tensors is refused.
  std::string refusal(const std::vector<SafetensorsSpec>& specs,
                      const SafetensorsMetadata& metadata = {}) const {
    return error_of([&] { writer(specs, metadata); });
  }

  TestFolder folder_;
  std::filesystem::path path_ = folder_ / "x.safetensors";
};

// No file of this process can grow beyond `bytes` while this lives: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(std::int64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(SafetensorsWrite, TensorsComeInAnyOrder) {
  SafetensorsWriter file =
      writer({{"a", at::kFloat, {2}}, {"b", at::kFloat, {3}}, {"c", at::kLong, {}}});
  file.write("b", at::full({3}, 2.0F));
  file.write("c", at::full({}, 7, at::kLong));
  file.write("a", at::full({2}, 1.0F));
  file.finish();
  const SafetensorsFile read(path_);
  EXPECT_EQ(read.names(), (Listing{"c", "a", "b"}));  // 8-byte elements first
  EXPECT_TRUE(same_bits(read.read("a"), at::full({2}, 1.0F)));
  EXPECT_TRUE(same_bits(read.read("b"), at::full({3}, 2.0F)));
  EXPECT_TRUE(same_bits(read.read("c"), at::full({}, 7, at::kLong)));
}

TEST_F(SafetensorsWrite, EveryTensorIsAligned) {
  std::vector<SafetensorsSpec> specs;
  for (const at::ScalarType dtype : testing::kAllDtypes) {
    specs.insert(specs.begin(), {c10::toString(dtype), dtype, {3}});
  }
  SafetensorsWriter file = writer(specs);
  for (const auto& spec : specs) file.write(spec.name, at::zeros(spec.shape, spec.dtype));
  file.finish();
  const std::string bytes = testing::read_bytes(path_);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  EXPECT_EQ(header % 8, 0);
  const SafetensorsFile read(path_);
  for (const auto& name : read.names()) {
    const auto& info = read.info(name);
    EXPECT_EQ(info.begin % static_cast<std::int64_t>(c10::elementSize(info.dtype)), 0) << name;
  }
}

TEST_F(SafetensorsWrite, EqualElementsStayInTheOrderGiven) {
  Listing names;
  NamedTensors tensors;
  for (int i = 0; i < 100; ++i) {
    names.push_back("layer " + std::to_string(i * 37 % 100));
    tensors.emplace_back(names.back(), at::ones({1 + i % 3}));
  }
  save_safetensors(path_, tensors);
  EXPECT_EQ(SafetensorsFile(path_).names(), names);
}

TEST_F(SafetensorsWrite, SpecsThatAreRefused) {
  const std::string path = path_.string();
  EXPECT_EQ(lacking(refusal({{"w", at::kFloat, {1}}, {"w", at::kFloat, {1}}}),
                    {path, "\"w\"", "given twice"}),
            "");
  EXPECT_EQ(lacking(refusal({{"__metadata__", at::kFloat, {1}}}), {path, "taken by the format"}),
            "");
  EXPECT_EQ(
      lacking(refusal({{"z", at::kComplexFloat, {1}}}), {path, "\"z\"", "ComplexFloat", "BF16"}),
      "");
  EXPECT_EQ(lacking(refusal({{"w", at::kFloat, {2, -1}}}), {path, "\"w\"", "dimension of -1"}), "");
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  EXPECT_EQ(lacking(refusal({{"w", at::kFloat, {kHuge}}}), {path, "\"w\"", "63 bits"}), "");
  EXPECT_EQ(lacking(refusal({{"v", at::kByte, {kHuge, 3}}, {"w", at::kByte, {kHuge, 3}}}),
                    {path, "\"w\"", "63 bits"}),
            "");
  EXPECT_EQ(lacking(refusal({{"\xff", at::kFloat, {1}}}), {path, "UTF-8"}), "");
  EXPECT_EQ(lacking(refusal({}, {{"note", "\xff"}}), {path, "UTF-8"}), "");
  EXPECT_EQ(lacking(refusal({}, {{"note", std::string(100'000'001, 'x')}}), {path, "100000000"}),
            "");
  EXPECT_EQ(lacking(error_of([&] {
                      save_safetensors(path_, {{"w", at::Tensor()}});
                    }),
                    {path, "\"w\"", "not defined"}),
            "");
  EXPECT_EQ(folder_.listing(), Listing{});
}

TEST_F(SafetensorsWrite, WritesThatAreRefused) {
  SafetensorsWriter file = writer({{"w", at::kFloat, {2}}, {"ids", at::kInt, {2}}});
  const auto error = [&](const std::string& name, const at::Tensor& tensor) {
    return error_of([&] { file.write(name, tensor); });
  };
  const std::string path = path_.string();
  EXPECT_EQ(lacking(error("idx", at::ones({2})), {path, "\"idx\"", "among its 2: \"w\" \"ids\""}),
            "");
  EXPECT_EQ(lacking(error("w", at::ones({3})), {path, "\"w\"", "[3]", "[2]"}), "");
  EXPECT_EQ(lacking(error("w", at::ones({2}, at::kInt)), {path, "\"w\"", "Int", "Float"}), "");
  EXPECT_EQ(lacking(error("ids", at::ones({2}, at::kLong)), {path, "\"ids\"", "Long", "Int"}), "");
  EXPECT_EQ(lacking(error("w", at::Tensor()), {path, "\"w\"", "dense"}), "");
  file.write("w", at::ones({2}));
  EXPECT_EQ(lacking(error("w", at::ones({2})), {path, "\"w\"", "second time"}), "");
  EXPECT_EQ(lacking(error_of([&] { file.finish(); }), {path, "1 of 2 tensors", "\"ids\""}), "");
  file.write("ids", at::ones({2}, at::kInt));
  file.finish();
  EXPECT_EQ(lacking(error_of([&] { file.finish(); }), {path, "finished already"}), "");
  EXPECT_EQ(lacking(error("w", at::ones({2})), {path, "finished"}), "");
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
}

TEST_F(SafetensorsWrite, NothingAppearsBeforeFinish) {
  save_safetensors(path_, {{"old", at::ones({2})}});
  {
    SafetensorsWriter file = writer({{"new", at::kFloat, {2}}});
    file.write("new", at::ones({2}));
    EXPECT_TRUE(SafetensorsFile(path_).contains("old"));
    EXPECT_EQ(folder_.listing().size(), 2);  // the old file and a temporary one
  }
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
  EXPECT_TRUE(SafetensorsFile(path_).contains("old"));
}

TEST_F(SafetensorsWrite, TwoWritersOfOneFileDoNotMix) {
  SafetensorsWriter first = writer({{"w", at::kFloat, {2}}});
  SafetensorsWriter second = writer({{"w", at::kFloat, {2}}});
  first.write("w", at::ones({2}));
  second.write("w", at::zeros({2}));
  first.finish();
  EXPECT_TRUE(same_bits(SafetensorsFile(path_).read("w"), at::ones({2})));
  second.finish();
  EXPECT_TRUE(same_bits(SafetensorsFile(path_).read("w"), at::zeros({2})));
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
}

TEST_F(SafetensorsWrite, AFullDiskIsNoticedBeforeTheFirstTensor) {
  const FullDisk full(kMebibyte);
  EXPECT_EQ(lacking(refusal({{"w", at::kByte, {2 * kMebibyte}}}),
                    {path_.string(), "cannot be", "File too large"}),
            "");
  EXPECT_EQ(folder_.listing(), Listing{});
  // A smaller one fits.
  SafetensorsWriter file = writer({{"w", at::kByte, {kMebibyte / 2}}});
}

TEST_F(SafetensorsWrite, ADiskThatRefusesLaterLeavesTheOldFile) {
  save_safetensors(path_, {{"old", at::ones({2})}});
  {
    SafetensorsWriter file = writer({{"w", at::kByte, {4 * kMebibyte}}});
    const FullDisk full(kMebibyte);
    EXPECT_EQ(lacking(error_of([&] { file.write("w", at::ones({4 * kMebibyte}, at::kByte)); }),
                      {path_.string(), "cannot be written", "File too large"}),
              "");
    EXPECT_EQ(lacking(error_of([&] { file.finish(); }), {"1 of 1 tensors were not written"}), "");
  }
  EXPECT_EQ(folder_.listing(), Listing{"x.safetensors"});
  EXPECT_TRUE(SafetensorsFile(path_).contains("old"));
}

TEST_F(SafetensorsWrite, PlacesThatCannotBeWritten) {
  const auto refusal_at = [](const std::filesystem::path& path) {
    return error_of([&] { save_safetensors(path, {{"w", at::ones({2})}}); });
  };
  folder_.write("file", "");
  EXPECT_EQ(lacking(refusal_at(folder_ / "none/x.safetensors"), {"none/x.safetensors", "No such"}),
            "");
  EXPECT_EQ(lacking(refusal_at(folder_ / "file/x.safetensors"), {"Not a directory"}), "");
  EXPECT_EQ(lacking(refusal_at(folder_.path()), {folder_.path().string(), "names a folder"}), "");
  EXPECT_EQ(lacking(refusal_at(""), {"names a folder"}), "");
  EXPECT_EQ(folder_.listing(), Listing{"file"});
}

// Runs `action` as a user for whom permissions count: root may write anywhere.
void without_root(const std::function<void()>& action) {
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  ASSERT_TRUE(user != 0 || ::seteuid(kNobody) == 0);
  action();
  ASSERT_EQ(::seteuid(user), 0);
}

TEST_F(SafetensorsWrite, AFolderThatMayNotBeWritten) {
  const auto locked = static_cast<std::filesystem::perms>(0555);
  std::filesystem::create_directory(folder_ / "locked");
  std::filesystem::permissions(folder_.path(), static_cast<std::filesystem::perms>(0755));
  std::filesystem::permissions(folder_ / "locked", locked);
  std::string file_error;
  std::string folder_error;
  without_root([&] {
    file_error = error_of([&] {
      save_safetensors(folder_ / "locked/x.safetensors", {{"w", at::ones({2})}});
    });
    folder_error = error_of([&] {
      save_safetensors_folder(folder_ / "locked", {{"w", at::ones({2})}});
    });
  });
  EXPECT_EQ(lacking(file_error, {"locked/x.safetensors", "Permission denied"}), "");
  EXPECT_EQ(lacking(folder_error, {"locked/model.safetensors", "Permission denied"}), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "locked"));
}

}  // namespace
}  // namespace zero::io

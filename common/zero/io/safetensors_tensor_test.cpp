// What reading and writing do to the tensors on the program's side, and to its memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/safetensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>

namespace zero::io {
namespace {

using testing::error_of;
using testing::lacking;
using testing::same_bits;
using testing::TestFolder;

class SafetensorsTensor : public ::testing::Test {
 protected:
  // One file with a matrix "w" and integers "ids".
  SafetensorsTensor() {
    save_safetensors(path_, {{"w", matrix_}, {"ids", at::ones({4}, at::kLong)}});
  }
  SafetensorsFile open() const { return SafetensorsFile(path_); }

  TestFolder folder_;
  std::filesystem::path path_ = folder_ / "x.safetensors";
  at::Tensor matrix_ = at::randn({6, 5});
};

TEST_F(SafetensorsTensor, AParameterIsReadIntoBelowAutograd) {
  const at::Tensor parameter = at::zeros({6, 5}).requires_grad_();
  const at::Tensor factor = at::ones({6, 5}).requires_grad_();
  const at::Tensor loss = (parameter * factor).sum();  // saves the parameter for backward
  const auto version = parameter._version();
  open().read_into("w", parameter);
  EXPECT_TRUE(same_bits(parameter, matrix_));
  EXPECT_EQ(parameter._version(), version);
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(parameter.requires_grad());
  loss.backward();  // a raised version counter would stop it here
  EXPECT_TRUE(same_bits(factor.grad(), matrix_));
}

TEST_F(SafetensorsTensor, AParameterThatRequiresGradIsWritten) {
  const at::Tensor parameter = at::randn({6, 5}).requires_grad_();
  SafetensorsWriter writer(path_, {{"w", at::kBFloat16, {6, 5}}}, {});
  writer.write("w", parameter);
  writer.finish();
  EXPECT_TRUE(same_bits(open().read("w"), parameter.to(at::kBFloat16)));
}

TEST_F(SafetensorsTensor, ReadGivesATensorOfItsOwn) {
  const SafetensorsFile file = open();
  const at::Tensor first = file.read("w");
  first.zero_();
  EXPECT_TRUE(same_bits(file.read("w"), matrix_));
}

TEST_F(SafetensorsTensor, CopiesOfAFileOutliveTheFirst) {
  auto first = std::make_unique<SafetensorsFile>(path_);
  const SafetensorsFile second = *first;
  first.reset();
  EXPECT_TRUE(same_bits(second.read("w"), matrix_));
}

TEST_F(SafetensorsTensor, AnOpenFileSurvivesItsReplacement) {
  const SafetensorsFile file = open();
  save_safetensors(path_, {{"other", at::ones({3})}});
  EXPECT_TRUE(same_bits(file.read("w"), matrix_));
  EXPECT_TRUE(open().contains("other"));
}

TEST_F(SafetensorsTensor, ReadIntoRefusesWhatDoesNotFit) {
  const SafetensorsFile file = open();
  const auto error = [&](const std::string& name, const at::Tensor& out) {
    return error_of([&] { file.read_into(name, out); });
  };
  const std::string path = path_.string();
  EXPECT_EQ(lacking(error("w", at::empty({5, 6})), {path, "\"w\"", "[5, 6]", "[6, 5]"}), "");
  EXPECT_EQ(lacking(error("w", at::empty({30})), {path, "\"w\"", "[30]", "[6, 5]"}), "");
  EXPECT_EQ(lacking(error("w", at::empty({6, 5}, at::kLong)), {path, "\"w\"", "Long", "Float"}),
            "");
  EXPECT_EQ(lacking(error("ids", at::empty({4})), {path, "\"ids\"", "Float", "Long"}), "");
  EXPECT_EQ(lacking(error("ids", at::empty({4}, at::kInt)), {path, "\"ids\"", "Int", "Long"}), "");
  EXPECT_EQ(lacking(error("w", at::Tensor()), {path, "\"w\"", "dense tensor"}), "");
  EXPECT_EQ(lacking(error("w", at::empty({6, 5}, at::TensorOptions().device(at::kMeta))),
                    {path, "\"w\"", "dense tensor"}),
            "");
  EXPECT_EQ(lacking(error("w", at::empty({1, 5}).expand({6, 5})), {path, "\"w\"", "share memory"}),
            "");
  EXPECT_EQ(lacking(error("v", at::empty({6, 5})), {path, "\"v\"", "among its 2"}), "");
}

TEST_F(SafetensorsTensor, UnknownNamesAreRefused) {
  const SafetensorsFile file = open();
  EXPECT_EQ(lacking(error_of([&] { file.read("idz"); }), {"\"idz\"", "among its 2:"}), "");
  EXPECT_EQ(lacking(error_of([&] { file.info("embedding"); }), {"\"embedding\"", "among its 2"}),
            "");
  EXPECT_FALSE(file.contains("embedding"));
}

TEST_F(SafetensorsTensor, ATensorWithoutStorageIsNeitherReadIntoNorWritten) {
  const at::Tensor released = at::zeros({6, 5});
  memory::release_storage(released);
  EXPECT_EQ(lacking(error_of([&] { open().read_into("w", released); }), {"\"w\"", "no storage"}),
            "");
  SafetensorsWriter writer(folder_ / "y.safetensors", {{"w", at::kFloat, {6, 5}}}, {});
  EXPECT_EQ(lacking(error_of([&] { writer.write("w", released); }), {"\"w\"", "no storage"}), "");
  // The writer goes on once the tensor is gathered.
  writer.write("w", matrix_);
  writer.finish();
  EXPECT_TRUE(same_bits(SafetensorsFile(folder_ / "y.safetensors").read("w"), matrix_));
}

// Bytes that the allocator handed out at most at once while `action` ran.
template <typename Action>
std::int64_t most_allocated(Action&& action) {
  memory::install();
  memory::reset_peaks();
  const std::int64_t before = memory::snapshot().total;
  action();
  EXPECT_EQ(memory::snapshot().total, before);
  return memory::snapshot().total_peak - before;
}

TEST_F(SafetensorsTensor, ScratchStaysWithinItsBound) {
  const at::Tensor values = at::randn({4000, 1001});  // 15 MiB
  const at::Tensor out = at::zeros({4000, 1001}, at::kBFloat16);
  SafetensorsWriter writer(path_,
                           {{"same", at::kFloat, {4000, 1001}},
                            {"wider", at::kDouble, {4000, 1001}},
                            {"turned", at::kFloat, {1001, 4000}}},
                           {});
  EXPECT_EQ(most_allocated([&] { writer.write("same", values); }), 0);
  EXPECT_LE(most_allocated([&] { writer.write("wider", values); }), kSafetensorsScratchBytes);
  EXPECT_LE(most_allocated([&] { writer.write("turned", values.t()); }), kSafetensorsScratchBytes);
  writer.finish();

  const SafetensorsFile file = open();
  EXPECT_EQ(most_allocated([&] { file.read_into("same", values); }), 0);
  EXPECT_LE(most_allocated([&] { file.read_into("wider", out); }), kSafetensorsScratchBytes);
  EXPECT_LE(most_allocated([&] { file.read_into("turned", out.t()); }), kSafetensorsScratchBytes);
}

// A file's pages count in the resident set of the process while they are mapped in.
TEST_F(SafetensorsTensor, ReadingGivesThePagesOfTheFileBack) {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const at::Tensor out = at::ones({kBytes / 4});  // resident already
  save_safetensors(path_, {{"large", out}});
  const SafetensorsFile file = open();
  const std::int64_t before = memory::resident_set_bytes();
  file.read_into("large", out);
  EXPECT_LT(memory::resident_set_bytes() - before, kBytes / 4);
}

}  // namespace
}  // namespace zero::io

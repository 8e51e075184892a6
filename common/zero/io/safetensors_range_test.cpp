// Some elements of a tensor in a file, and no others.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/io/safetensors.hpp>

namespace zero::io {
namespace {

TEST(SafetensorsRange, GivesTheElementsAskedFor) {
  const testing::TestFolder folder;
  // More than a scratch buffer holds, so that a range is read in several goes.
  const std::int64_t count = kSafetensorsScratchBytes / 4 + 1000;
  const at::Tensor whole = at::arange(count, at::kFloat);
  save_safetensors(folder / "f.safetensors", {{"before", at::zeros({3})}, {"t", whole}});
  const SafetensorsFile file(folder / "f.safetensors");
  for (const auto& [begin, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, count}, {0, 1}, {count - 1, 1}, {7, count - 9}, {5, 0}, {count, 0}}) {
    const at::Tensor out = at::full({size + 2}, -1.0F);
    file.read_range_into("t", begin, out.narrow(0, 1, size));
    EXPECT_TRUE(at::equal(out.narrow(0, 1, size), whole.narrow(0, begin, size))) << begin;
    EXPECT_EQ(out[0].item<float>(), -1.0F);
    EXPECT_EQ(out[size + 1].item<float>(), -1.0F);
  }
  const at::Tensor converted = at::zeros({2, 3}, at::kDouble);
  file.read_range_into("t", 10, converted);
  EXPECT_TRUE(at::equal(converted, whole.narrow(0, 10, 6).view({2, 3}).to(at::kDouble)));
}

TEST(SafetensorsRange, RefusesWhatIsOutsideTheTensor) {
  const testing::TestFolder folder;
  save_safetensors(folder / "f.safetensors", {{"t", at::zeros({4})}, {"next", at::zeros({100})}});
  const SafetensorsFile file(folder / "f.safetensors");
  EXPECT_THROW(file.read_range_into("t", 1, at::zeros({4})), Error);
  EXPECT_THROW(file.read_range_into("t", -1, at::zeros({2})), Error);
  EXPECT_THROW(file.read_range_into("t", 5, at::zeros({0})), Error);
  EXPECT_THROW(file.read_range_into("u", 0, at::zeros({1})), Error);
  EXPECT_THROW(file.read_range_into("t", 0, at::zeros({4}, at::kInt)), Error);
}

}  // namespace
}  // namespace zero::io

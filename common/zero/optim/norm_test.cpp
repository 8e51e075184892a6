// What tensors add to a norm: as the CPU adds, and by lists of tensors as a GPU does.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <zero/optim/norm.hpp>

namespace zero::optim {
namespace {

constexpr Norm kNorms[] = {Norm::kL1, Norm::kL2, Norm::kInfinity};

// Odd sizes, one without elements, and every type a gradient may have.
std::vector<at::Tensor> tensors_of_all_types() {
  std::vector<at::Tensor> all;
  at::Generator generator = at::detail::createCPUGenerator(/*seed=*/3);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t n : {1, 0, 7, 1000, 4099}) {
      all.push_back((at::randn({n}, generator) * 3).to(dtype));
    }
  }
  return all;
}

TEST(NormContributions, AreEachTensorsOwn) {
  const std::vector<at::Tensor> all = tensors_of_all_types();
  const std::vector<double> sums = contributions(Norm::kL1, all);
  const std::vector<double> squares = contributions(Norm::kL2, all);
  const std::vector<double> largest = contributions(Norm::kInfinity, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(sums[i], absolute_sum(all[i])) << i;
    EXPECT_EQ(squares[i], squared_norm(all[i])) << i;
    const at::Tensor magnitudes = all[i].to(at::kDouble).abs();
    EXPECT_NEAR(sums[i], magnitudes.sum().item<double>(), 1e-10 * sums[i]) << i;
    EXPECT_NEAR(squares[i], magnitudes.square().sum().item<double>(), 1e-10 * squares[i]) << i;
    EXPECT_EQ(largest[i], all[i].numel() == 0 ? 0 : magnitudes.amax().item<double>()) << i;
  }
}

// The code that a GPU takes, on the CPU: the sums differ in their order only.
TEST(NormContributions, ByListsAreTheSame) {
  const std::vector<at::Tensor> all = tensors_of_all_types();
  for (const Norm norm : kNorms) {
    const std::vector<double> expected = contributions(norm, all);
    const std::vector<double> found = detail::contributions_by_lists(norm, all);
    ASSERT_EQ(found.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-12 * expected[i]) << name(norm) << " of " << i;
    }
  }
  EXPECT_TRUE(detail::contributions_by_lists(Norm::kL2, {}).empty());
  EXPECT_TRUE(contributions(Norm::kL2, {}).empty());
}

TEST(NormContributions, ShowWhatIsNotFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::vector<at::Tensor> all = {at::tensor({1.0F, 2.0F}).to(dtype),
                                           at::tensor({1.0F, bad, 2.0F}).to(dtype),
                                           at::tensor({3.0F}).to(dtype)};
      for (const Norm norm : kNorms) {
        for (const auto& found :
             {contributions(norm, all), detail::contributions_by_lists(norm, all)}) {
          EXPECT_TRUE(std::isfinite(found[0])) << name(norm);
          EXPECT_FALSE(std::isfinite(found[1])) << name(norm);
          EXPECT_EQ(std::isnan(found[1]), std::isnan(bad)) << name(norm);
          EXPECT_TRUE(std::isfinite(found[2])) << name(norm);
        }
      }
    }
  }
}

// What a float cannot hold is finite all the same where the gradient is of doubles.
TEST(NormContributions, OfDoublesGoBeyondFloats) {
  const at::Tensor large = at::tensor({1e100, -2e100}, at::kDouble);
  EXPECT_EQ(contributions(Norm::kInfinity, {large}).front(), 2e100);
  EXPECT_EQ(detail::contributions_by_lists(Norm::kInfinity, {large}).front(), 2e100);
}

}  // namespace
}  // namespace zero::optim

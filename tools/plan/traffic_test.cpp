#include "traffic.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

#include "model.hpp"

namespace zero::plan {
namespace {

TEST(Traffic, GradientsAndParametersMayHaveOtherDtypes) {
  const Traffic traffic = sent(Scheme::kZero3, {/*gradients=*/400, /*parameters=*/100}, 2);
  EXPECT_DOUBLE_EQ(traffic.gradients_reduced, 200);
  EXPECT_DOUBLE_EQ(traffic.parameters_gathered, 100);
  EXPECT_THROW(sent(Scheme::kDdp, {1, 1}, 0), Error);
}

TEST(Traffic, KeepingTheRootOfSmolLm2Saves) {
  const Model model = model_of(nn::preset("smollm2-360m"), "");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  EXPECT_NEAR(sent(Scheme::kZero3, {1, 1}, 2, kept).total(), 1.435, 0.0005);
}

TEST(TensorParallelism, CrossesZero3AtFourAndAHalfHidden) {
  constexpr std::int64_t kHidden = 4096;
  constexpr std::int64_t kLayer = 12 * kHidden * kHidden;
  const std::int64_t even = tensor_parallel_crossover(kLayer, kHidden, mixed());
  EXPECT_EQ(even, 9 * kHidden / 2 + 1);
  for (const std::int64_t n : {2, 8}) {
    const double zero3 = sent(Scheme::kZero3, copies(kLayer, mixed()), n).total();
    EXPECT_LT(zero3, tensor_parallel_sent(even, kHidden, 2, n));
    EXPECT_GE(zero3, tensor_parallel_sent(even - 1, kHidden, 2, n));
  }
  EXPECT_DOUBLE_EQ(tensor_parallel_sent(10, 100, 2, 2), 8 * 10 * 100 * 2 / 2.0);
}

}  // namespace
}  // namespace zero::plan

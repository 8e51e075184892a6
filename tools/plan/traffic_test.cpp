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

}  // namespace
}  // namespace zero::plan

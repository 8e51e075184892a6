#include "traffic.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

#include "model.hpp"

namespace zero::plan {
namespace {

constexpr Scheme kAll[] = {Scheme::kDdp,      Scheme::kZero1Naive,       Scheme::kZero1,
                           Scheme::kZero2,    Scheme::kZero2Placeholder, Scheme::kZero3,
                           Scheme::kZero3Kept};

double in_v(Scheme scheme, std::int64_t n) { return sent(scheme, {1, 1}, n).total(); }

TEST(Traffic, EqualShares) {
  for (const std::int64_t n : {1, 2, 3, 4, 8, 512}) {
    const double part = static_cast<double>(n - 1) / static_cast<double>(n);
    EXPECT_DOUBLE_EQ(in_v(Scheme::kDdp, n), 2 * part);
    EXPECT_DOUBLE_EQ(in_v(Scheme::kZero1, n), 2 * part);
    EXPECT_DOUBLE_EQ(in_v(Scheme::kZero2, n), 2 * part);
    EXPECT_DOUBLE_EQ(in_v(Scheme::kZero1Naive, n), 3 * part);
    EXPECT_DOUBLE_EQ(in_v(Scheme::kZero3, n), 3 * part);
    EXPECT_DOUBLE_EQ(in_v(Scheme::kZero3Kept, n), 2 * part);
    const Traffic placeholder = sent(Scheme::kZero2Placeholder, {1, 1}, n);
    EXPECT_NEAR(placeholder.gradients_reduced, static_cast<double>(n - 1), 1e-9);
    EXPECT_DOUBLE_EQ(placeholder.parameters_gathered, part);
  }
  EXPECT_THROW(sent(Scheme::kDdp, {1, 1}, 0), Error);
}

TEST(Traffic, OneRankSendsNothing) {
  for (const Scheme scheme : kAll) EXPECT_EQ(in_v(scheme, 1), 0) << name(scheme);
}

TEST(Traffic, GradientsAndParametersMayHaveOtherDtypes) {
  const Traffic traffic = sent(Scheme::kZero3, {/*gradients=*/400, /*parameters=*/100}, 2);
  EXPECT_DOUBLE_EQ(traffic.gradients_reduced, 200);
  EXPECT_DOUBLE_EQ(traffic.parameters_gathered, 100);
}

TEST(Traffic, KeepingTheRootOfSmolLm2Saves) {
  const Model model = model_of(nn::preset("smollm2-360m"), "");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  EXPECT_NEAR(sent(Scheme::kZero3, {1, 1}, 2, kept).total(), 1.435, 0.0005);
}

}  // namespace
}  // namespace zero::plan

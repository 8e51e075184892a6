#include "traffic.hpp"

#include <gtest/gtest.h>

#include <zero/base/error.hpp>

#include "quantity.hpp"
#include "whole_parameters.hpp"

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

TEST(Traffic, OneAndAHalfBillionInGiB) {
  const Copies v = copies(1'500'000'000, mixed());
  const double gib = static_cast<double>(kGiB);
  for (const Scheme scheme : {Scheme::kDdp, Scheme::kZero1, Scheme::kZero2}) {
    const Traffic traffic = volume(scheme, v, 8);
    EXPECT_NEAR(traffic.total() / gib, 5.59, 0.005);
    EXPECT_NEAR(traffic.gradients_reduced / gib, 2.79, 0.005);
    EXPECT_NEAR((traffic.gradients_gathered + traffic.parameters_gathered) / gib, 2.79, 0.005);
  }
  const Traffic zero3 = volume(Scheme::kZero3, v, 8);
  EXPECT_NEAR(zero3.total() / gib, 8.38, 0.005);
  EXPECT_NEAR(zero3.parameters_gathered / gib, 5.59, 0.005);
  EXPECT_NEAR(zero3.gradients_reduced / gib, 2.79, 0.005);
}

TEST(Traffic, ByOwner) {
  constexpr double kV = 100, kOwned = 30, kKept = 10;
  EXPECT_DOUBLE_EQ(sent_by_owner(Scheme::kZero1Naive, kV, 4, kOwned), 150 + 3 * 30);
  EXPECT_DOUBLE_EQ(sent_by_owner(Scheme::kZero1, kV, 4, kOwned), 100 + 2 * 30);
  EXPECT_DOUBLE_EQ(sent_by_owner(Scheme::kZero2, kV, 4, kOwned), 160);
  EXPECT_DOUBLE_EQ(sent_by_owner(Scheme::kZero2Placeholder, kV, 4, kOwned), 3 * 130);
  EXPECT_DOUBLE_EQ(sent_by_owner(Scheme::kZero3, kV, 4, kOwned, kKept), 70 + 3 * 50);
  for (const double owned : {0.0, 30.0, 100.0}) {
    EXPECT_DOUBLE_EQ(sent_by_owner(Scheme::kZero2, kV, 2, owned), kV);
  }
}

TEST(Traffic, MeanOverOwnersIsThatOfEqualShares) {
  const std::vector<TensorSize> tensors = llama_tensors(nn::preset("smollm2-135m"));
  for (const int n : {1, 2, 3, 8, 16}) {
    const auto owned = owned_elements(tensors, n, train::Ownership::kBySize);
    for (const Scheme scheme : kAll) {
      double sum = 0, copy = 0;
      for (const std::int64_t elements : owned) copy += static_cast<double>(elements);
      for (const std::int64_t elements : owned) {
        sum += sent_by_owner(scheme, copy, n, static_cast<double>(elements));
      }
      EXPECT_NEAR(sum / n / copy, in_v(scheme, n), 1e-9) << name(scheme) << ", " << n;
    }
  }
}

TEST(Traffic, KeepingTheRootOfSmolLm2Saves) {
  const Model model = model_of(nn::preset("smollm2-360m"), "");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  EXPECT_NEAR(sent(Scheme::kZero3, {1, 1}, 2, kept).total(), 1.435, 0.0005);
}

TEST(Traffic, WithoutReshardParametersAreShardedAtRestAndWholeInAStep) {
  const ParameterResidency kept =
      zero3_parameters(Scheme::kZero3Kept, 8000, /*largest_unit=*/100, mixed(), 8);
  EXPECT_EQ(kept.at_rest, 2000);
  EXPECT_EQ(kept.peak, 16000);
  const ParameterResidency unit = zero3_parameters(Scheme::kZero3, 8000, 100, mixed(), 8);
  EXPECT_EQ(unit.at_rest, 2000);
  EXPECT_EQ(unit.peak, 2200);
}

}  // namespace
}  // namespace zero::plan

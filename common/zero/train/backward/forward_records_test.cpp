#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <tests/support/error_of.hpp>
#include <zero/train/backward/forward_records.hpp>

namespace zero::train {
namespace {

TEST(ForwardRecords, KnowTheLossTermsOfWhatALossIsMadeOf) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  ForwardRecords records;
  const at::Tensor a = weight.sum(), b = weight.square().sum();
  records.add(a, 4);
  records.add(b, 8);
  EXPECT_EQ(records.loss_terms(a), 4);
  EXPECT_EQ(records.loss_terms(b / 3), 8);
  EXPECT_EQ(records.loss_terms(a + 2 * b), 6);  // as many as one forward of their mean
  EXPECT_EQ(records.loss_terms(weight.prod()), std::nullopt);
}

TEST(ForwardRecords, RefuseALossOfWhichAPartIsOlderThanTheWeights) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  ForwardRecords records;
  const at::Tensor old = weight.sum();
  records.add(old, 1);
  records.weights_changed();
  const at::Tensor fresh = weight.square().sum();
  records.add(fresh, 1);
  EXPECT_TRUE(records.is_fresh(fresh));
  EXPECT_FALSE(records.is_fresh(fresh + old));
}

}  // namespace
}  // namespace zero::train

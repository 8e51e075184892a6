// Sums in rank order on devices, here on the CPU, against those of the CPU.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <zero/base/error.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/sum_by_operations.hpp>

namespace zero::dist {
namespace {

at::Tensor random(int seed, std::int64_t n, at::ScalarType dtype) {
  at::manual_seed(static_cast<std::uint64_t>(seed));
  return at::randn({n}).to(dtype);
}

TEST(SumByOperations, HasTheBitsOfTheSumInRankOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt}) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < 5; ++r) inputs.push_back((random(r, 10007, at::kFloat) * 100).to(dtype));
    const int divisor = dtype == at::kInt ? 1 : 5;
    at::Tensor expected = at::empty_like(inputs[0]);
    sum_in_rank_order(expected, inputs, divisor);
    const at::Tensor& output = inputs[2];  // in place of one of them
    sum_by_operations(output, inputs, divisor);
    EXPECT_TRUE(at::equal(output, expected)) << c10::toString(dtype);
  }
}

TEST(SumByOperations, DoesNotAverageIntegers) {
  const std::vector<at::Tensor> inputs(2, at::ones({3}, at::kInt));
  const at::Tensor output = at::empty({3}, at::kInt);
  EXPECT_THROW(sum_by_operations(output, inputs, 2), Error);
}

}  // namespace
}  // namespace zero::dist

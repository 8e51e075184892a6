#include "sharded_linear.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>

#include <harness.hpp>
#include <zero/memory/accounting.hpp>

namespace zero {
namespace {

using testing::on_ranks;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

class ShardedLinearOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedLinearOnRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(ShardedLinearOnRanks, IsALinearLayerWhoseGradientsAreAveraged) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    const at::Tensor weight = random({13, 7}, 1);
    const at::Tensor bias = random({13}, 2);
    ShardedLinear layer(weight, bias, c);
    at::Tensor sum;
    for (int r = 0; r < c.size(); ++r) {  // what every rank would have by itself
      at::Tensor w = weight.clone().requires_grad_();
      at::linear(random({5, 7}, 10 + static_cast<std::uint64_t>(r)), w, bias)
          .square()
          .sum()
          .backward();
      sum = sum.defined() ? sum + w.grad() : w.grad();
    }
    at::Tensor x = random({5, 7}, 10 + static_cast<std::uint64_t>(c.rank())).requires_grad_();
    const at::Tensor y = layer.forward(x);
    EXPECT_TRUE(at::equal(y, at::linear(x, weight, bias)));
    y.square().sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), (2 * y.detach()).mm(weight)));
    const auto mine = layer.weight().layout().segment(0, c.rank());
    EXPECT_TRUE(at::equal(layer.weight().gradient().narrow(0, 0, mine.size),
                          (sum / c.size()).flatten().narrow(0, mine.begin, mine.size)));
  });
}

TEST_P(ShardedLinearOnRanks, TrainsWhereTheInputNeedsNoGradient) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    ShardedLinear layer(random({4, 3}, 1), random({4}, 2), c);
    layer.forward(random({2, 3}, 3)).sum().backward();
    EXPECT_TRUE(layer.weight().gradient().defined());
    EXPECT_TRUE(layer.bias().gradient().defined());
  });
}

TEST_P(ShardedLinearOnRanks, HoldsItsShardsAndNothingElseBetweenForwardAndBackward) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    const at::Tensor weight = random({64, 256}, 1);
    const at::Tensor bias = random({64}, 2);
    const auto before = memory::snapshot()[memory::Category::kParameters];
    ShardedLinear layer(weight, bias, c);
    const at::Tensor y = layer.forward(random({2, 256}, 3));
    const std::int64_t shards = layer.weight().layout().shard() + layer.bias().layout().shard();
    EXPECT_EQ(memory::snapshot()[memory::Category::kParameters] - before, 4 * shards);
  });
}

}  // namespace
}  // namespace zero

#include "sharded_linear.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <tests/support/ranks.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

std::int64_t bytes_of(Category category) { return memory::snapshot()[category]; }

// On four ranks the first has shards with a part of the tensor, and shards of padding alone; the
// second has fewer elements than ranks; the last needs no padding.
const std::vector<std::vector<std::int64_t>> kShapes = {{13, 7}, {}, {64, 12}};

class ShardedParameterOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedParameterOnRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(ShardedParameterOnRanks, IsWholeFromGatherToReleaseOnly) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    for (const auto& shape : kShapes) {
      const at::Tensor whole = random(shape, 1);
      const std::int64_t before = bytes_of(Category::kParameters);
      ShardedParameter parameter(whole, c);
      const std::int64_t shard = 4 * parameter.layout().shard();
      EXPECT_EQ(bytes_of(Category::kParameters) - before, shard);
      const at::Tensor gathered = parameter.gather();
      EXPECT_TRUE(at::equal(gathered, whole));
      EXPECT_EQ(bytes_of(Category::kParameters) - before, shard + 4 * parameter.layout().total());
      parameter.release();
      // Although `gathered` is there still: the bytes are given back, not the tensor.
      EXPECT_EQ(bytes_of(Category::kParameters) - before, shard);
      EXPECT_FALSE(memory::has_storage(gathered));
      parameter.release();
      EXPECT_TRUE(at::equal(parameter.gather(), whole));
      EXPECT_TRUE(at::equal(gathered, whole)) << "the bytes came back in another place";
    }
  });
}

TEST_P(ShardedParameterOnRanks, SendsItsShardOnceForEachGatherAfterARelease) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    ShardedParameter parameter(random({13, 7}, 1), c);
    const std::int64_t once = 4 * parameter.layout().shard() * (c.size() - 1);
    const auto sent = [&c] { return c.traffic().bytes(dist::Purpose::kParameter); };
    const std::int64_t before = sent();
    parameter.gather();
    parameter.gather();
    EXPECT_EQ(sent() - before, once);
    parameter.release();
    EXPECT_EQ(sent() - before, once);
    parameter.gather();
    EXPECT_EQ(sent() - before, 2 * once);
  });
}

TEST_P(ShardedParameterOnRanks, NextGatherSeesWhatEveryRankDidToItsShard) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    for (const auto& shape : kShapes) {
      const at::Tensor whole = random(shape, 1);
      ShardedParameter parameter(whole, c);
      parameter.gather();
      parameter.release();
      parameter.shard().mul_(c.rank() + 2);
      at::Tensor expected = whole.clone();
      for (int rank = 0; rank < c.size(); ++rank) {
        const auto part = parameter.layout().range(0, rank);
        expected.view({-1}).narrow(0, part.begin, part.size).mul_(rank + 2);
      }
      EXPECT_TRUE(at::equal(parameter.gather(), expected));
    }
  });
}

TEST_P(ShardedParameterOnRanks, AddsTheAveragesOfSeveralReductions) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    const auto gradient = [](const std::vector<std::int64_t>& shape, int rank, int step) {
      return random(shape, static_cast<std::uint64_t>(10 + 10 * step + rank));
    };
    for (const auto& shape : kShapes) {
      ShardedParameter parameter(random(shape, 1), c);
      const at::Tensor values = parameter.shard().clone();
      const std::int64_t before = bytes_of(Category::kGradients);
      EXPECT_FALSE(parameter.gradient().defined());
      at::Tensor expected;
      for (int step = 0; step < 2; ++step) {
        at::Tensor sum = gradient(shape, 0, step);
        for (int r = 1; r < c.size(); ++r) sum = sum + gradient(shape, r, step);
        const at::Tensor average = sum / c.size();
        expected = step == 0 ? average : expected + average;
        parameter.reduce(gradient(shape, c.rank(), step));
        const auto mine = parameter.layout().range(0, c.rank());
        EXPECT_TRUE(at::equal(parameter.gradient().narrow(0, 0, mine.size),
                              expected.flatten().narrow(0, mine.begin, mine.size)))
            << "reduction " << step + 1;
        const at::Tensor rest = parameter.gradient().slice(0, mine.size);
        EXPECT_TRUE(at::equal(rest, at::zeros_like(rest))) << "padding";
        EXPECT_EQ(bytes_of(Category::kGradients) - before, 4 * parameter.layout().shard());
      }
      EXPECT_TRUE(at::equal(parameter.shard(), values)) << "a reduction is no update";
    }
  });
}

class ShardedLinearOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedLinearOnRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(ShardedLinearOnRanks, IsALinearLayerWhoseGradientsAreAveraged) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    const at::Tensor weight = random({13, 7}, 1);
    const at::Tensor bias = random({13}, 2);
    ShardedLinear layer(weight, bias, c);
    at::Tensor of_weight, of_bias;
    for (int r = 0; r < c.size(); ++r) {  // what every rank would have by itself
      at::Tensor w = weight.clone().requires_grad_();
      at::Tensor b = bias.clone().requires_grad_();
      at::linear(random({5, 7}, 10 + static_cast<std::uint64_t>(r)), w, b)
          .square()
          .sum()
          .backward();
      of_weight = r == 0 ? w.grad() : of_weight + w.grad();
      of_bias = r == 0 ? b.grad() : of_bias + b.grad();
    }
    at::Tensor x = random({5, 7}, 10 + static_cast<std::uint64_t>(c.rank())).requires_grad_();
    const at::Tensor y = layer.forward(x);
    EXPECT_TRUE(at::equal(y, at::linear(x, weight, bias)));
    y.square().sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), (2 * y.detach()).mm(weight)));
    const auto expect_part_of = [&c](ShardedParameter& parameter, const at::Tensor& sum) {
      const auto mine = parameter.layout().range(0, c.rank());
      EXPECT_TRUE(at::equal(parameter.gradient().narrow(0, 0, mine.size),
                            (sum / c.size()).flatten().narrow(0, mine.begin, mine.size)));
    };
    expect_part_of(layer.weight(), of_weight);
    expect_part_of(layer.bias(), of_bias);
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

TEST_P(ShardedLinearOnRanks, HoldsItsShardsAndNothingElseBetweenAndAfterForwardAndBackward) {
  on_ranks(GetParam(), [](dist::Communicator& c) {
    const at::Tensor weight = random({64, 256}, 1);
    const at::Tensor bias = random({64}, 2);
    const std::int64_t before = bytes_of(Category::kParameters);
    ShardedLinear layer(weight, bias, c);
    const at::Tensor y = layer.forward(random({2, 256}, 3));
    const std::int64_t shards = layer.weight().layout().shard() + layer.bias().layout().shard();
    EXPECT_EQ(bytes_of(Category::kParameters) - before, 4 * shards);
    y.sum().backward();
    EXPECT_EQ(bytes_of(Category::kParameters) - before, 4 * shards);
  });
}

}  // namespace
}  // namespace zero

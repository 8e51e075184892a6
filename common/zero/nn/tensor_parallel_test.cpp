// The functions of a tensor axis by values worked out by hand, and split layers beside whole ones.

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include <tests/support/ranks.hpp>
#include <tests/support/tensors.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/layers.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/nn/tensor_parallel.hpp>

namespace zero::nn {
namespace {

using dist::Communicator;
using testing::expect_error;
using testing::identical;
using testing::on_ranks;

// 1 + 2 + ... + n: what ranks contribute below.
double triangle(const Communicator& axis) { return axis.size() * (axis.size() + 1) / 2.0; }

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
}
at::Tensor row(std::int64_t n) { return at::arange(n, at::kDouble).view({1, n}); }

class TensorAxis : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TensorAxis, ::testing::Values(1, 2, 3), testing::name_of_ranks);

TEST_P(TensorAxis, CopyDoesNothingAndAddsUpGradients) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const at::Tensor x = leaf(at::arange(3));
    const at::Tensor y = copy_to_axis(x, axis);
    EXPECT_TRUE(identical(y.detach(), x.detach()));
    EXPECT_EQ(axis.traffic().bytes(), 0);
    (y.sum() * (axis.rank() + 1)).backward();
    EXPECT_TRUE(identical(x.grad(), at::full({3}, triangle(axis), at::kDouble)));
    EXPECT_EQ(axis.traffic().bytes(dist::Purpose::kActivation),
              dist::all_reduce_bytes(3, 8, axis.rank(), axis.size()));
  });
}

TEST_P(TensorAxis, ReduceAddsUpAndLeavesTheGradient) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const at::Tensor x = leaf(at::arange(3) * (axis.rank() + 1));
    const at::Tensor y = reduce_over_axis(x, axis);
    EXPECT_TRUE(identical(y.detach(), at::arange(3, at::kDouble) * triangle(axis)));
    EXPECT_TRUE(identical(x.detach(), at::arange(3, at::kDouble) * (axis.rank() + 1)));
    const std::int64_t sent = axis.traffic().bytes();
    (y * at::arange(3)).sum().backward();
    EXPECT_TRUE(identical(x.grad(), at::arange(3, at::kDouble)));
    EXPECT_EQ(axis.traffic().bytes(), sent);
  });
}

TEST_P(TensorAxis, GatherPutsPartsInOrderAndReturnsTheirGradients) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const int n = axis.size(), r = axis.rank();
    const at::Tensor mine = row(2 * n).narrow(1, 2 * r, 2);
    for (const Uncut gradient : {Uncut::kPartial, Uncut::kSame}) {
      const at::Tensor x = leaf(mine.clone());
      const at::Tensor y = gather_over_axis(x, -1, axis, gradient);
      EXPECT_TRUE(identical(y.detach(), row(2 * n)));
      // Each rank weighs the result differently if gradients are to be added up.
      const bool sums = gradient == Uncut::kPartial;
      (y * row(2 * n) * (sums ? r + 1 : 1)).sum().backward();
      EXPECT_TRUE(identical(x.grad(), mine * (sums ? triangle(axis) : 1.0)));
    }
  });
}

TEST_P(TensorAxis, ScatterLeavesAPartAndGathersGradients) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const int n = axis.size(), r = axis.rank();
    for (const Uncut x_is : {Uncut::kPartial, Uncut::kSame}) {
      const bool sums = x_is == Uncut::kPartial;
      const at::Tensor x = leaf(row(2 * n) * (sums ? r + 1 : 1));
      const at::Tensor y = scatter_over_axis(x, 1, axis, x_is);
      EXPECT_TRUE(
          identical(y.detach(), row(2 * n).narrow(1, 2 * r, 2) * (sums ? triangle(axis) : 1.0)));
      EXPECT_FALSE(y.is_alias_of(x)) << "a part that keeps all of x";
      (y * (r + 1)).sum().backward();
      EXPECT_TRUE(identical(x.grad(), (row(2 * n) / 2).floor() + 1));
    }
  });
}

// Parts along a dimension that is not the first, of several samples, and gradients that are no
// dense tensor.
TEST(TensorAxisLayout, OfTheMiddleDimension) {
  on_ranks(2, [](Communicator& axis) {
    const at::Tensor whole = at::arange(24, at::kDouble).view({2, 4, 3});
    const at::Tensor mine = whole.narrow(1, 2 * axis.rank(), 2);
    const at::Tensor x = leaf(mine.contiguous());
    const at::Tensor all = gather_over_axis(x, 1, axis);
    EXPECT_TRUE(identical(all.detach(), whole));
    all.sum().backward();
    EXPECT_TRUE(identical(x.grad(), at::full({2, 2, 3}, 2.0, at::kDouble)));
    const at::Tensor y = leaf(whole.clone());
    const at::Tensor part = scatter_over_axis(y, 1, axis);
    EXPECT_TRUE(identical(part.detach(), mine * 2));
    part.sum().backward();
    EXPECT_TRUE(identical(y.grad(), at::ones({2, 4, 3}, at::kDouble)));
    expect_error(
        [&] {
          scatter_over_axis(at::ones({1, 5}), 1, axis);
        },
        {"5 elements", "2 ranks", "tokens"});
  });
}

// First values that are small whole numbers: every sum of them is exact in any order.
struct WholeNumbers : ParameterSource {
  void fill(const Parameter& parameter, at::Tensor& out) override {
    const auto seed = static_cast<std::int64_t>(parameter.name.size());
    memory_of(out).copy_(
        (at::arange(out.numel()) * 5 + seed).remainder(7).sub(3).view(out.sizes()));
  }
  static at::Tensor memory_of(const at::Tensor& x) { return x.detach(); }
};

// y = (x A) * (x A) B of an embedding's rows, and its head.
struct SplitNet : Unit {
  explicit SplitNet(const TensorParallel& split = {}) : tensor(split) {
    const Initializer unused = Initializer::constant(0);
    embedding = register_module("embedding",
                                std::make_shared<Embedding>(12, 8, unused, at::kDouble, split));
    first = register_module(
        "first", std::make_shared<ColumnParallelLinear>(8, 12, unused, unused, split, at::kDouble));
    second = register_module(
        "second", std::make_shared<RowParallelLinear>(12, 8, unused, split, at::kDouble));
    WholeNumbers values;
    initialize_parameters(*this, values);
  }
  // The residual stream, and the logits of this rank.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& ids) {
    const at::Tensor x = embedding->forward(ids);
    const at::Tensor h = first->forward(tensor.enter(x));
    const at::Tensor y = x + second->forward(h * h);
    return {y, embedding->as_head(tensor.enter(y))};
  }
  TensorParallel tensor;
  std::shared_ptr<Embedding> embedding;
  std::shared_ptr<ColumnParallelLinear> first;
  std::shared_ptr<RowParallelLinear> second;
};

class SplitLayers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SplitLayers, ::testing::Values(1, 2, 4), testing::name_of_ranks);

TEST_P(SplitLayers, OfWholeNumbersHaveTheBitsOfWholeOnes) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const at::Tensor ids = at::tensor({3, 11, 0, 7, 7, 5, 2, 9}, at::kLong).view({2, 4});
    for (const bool sequence : {false, true}) {
      SplitNet whole, split({axis, sequence});
      const auto [x, logits] = whole.forward(ids);
      const auto [own_x, own_logits] = split.forward(ids);
      const TensorPlacement positions{&axis, 1}, features{&axis, 2};
      EXPECT_TRUE(identical(own_x.detach(), (sequence ? positions.part_of(x) : x).detach()));
      EXPECT_TRUE(identical(own_logits.detach(), features.part_of(logits).detach()));
      // The same function of all logits, of which each rank has some.
      (logits * logits).sum().backward();
      (own_logits * own_logits).sum().backward();
      const ParameterList wholes = list_parameters(whole), parts = list_parameters(split);
      for (std::size_t i = 0; i < wholes.size(); ++i) {
        const Parameter& p = parts.parameters[i];
        EXPECT_EQ(p.whole_sizes(), wholes.parameters[i].tensor.sizes().vec()) << p.name;
        EXPECT_EQ(p.numel() * axis.size(), wholes.parameters[i].numel()) << p.name;
        const at::Tensor& expected = wholes.parameters[i].tensor;
        EXPECT_TRUE(identical(p.tensor.detach(), p.placement.part_of(expected).detach())) << p.name;
        EXPECT_TRUE(identical(p.tensor.grad(), p.placement.part_of(expected.grad()))) << p.name;
        EXPECT_GT(expected.grad().abs().max().item<double>(), 0) << p.name;
        EXPECT_TRUE(identical(p.placement.whole_of(p.tensor), expected.detach())) << p.name;
      }
    }
  });
}

TEST(SplitLayersThatDoNotFit, NameTheNumber) {
  on_ranks(2, [](Communicator& axis) {
    const TensorParallel split(axis);
    const Initializer any = Initializer::constant(0);
    expect_error([&] { ColumnParallelLinear(4, 15, any, split); }, {"weight", "15", "2 ranks"});
    expect_error([&] { RowParallelLinear(5, 4, any, split); }, {"weight", "5 elements", "2 ranks"});
    expect_error([&] { Embedding(7, 4, any, at::kFloat, split); }, {"7 elements", "2 ranks"});
  });
}

class SplitCrossEntropy : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SplitCrossEntropy, ::testing::Values(1, 2, 3, 4),
                         testing::name_of_ranks);

TEST_P(SplitCrossEntropy, IsThatOfAllClasses) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const at::Tensor targets = testing::longs({0, 11, kIgnoredTarget, 5, 6});
    const at::Tensor logits = testing::random({5, 12}, 1) * 4;
    const at::Tensor whole = leaf(logits), own = leaf(TensorPlacement{&axis, 1}.part_of(logits));
    // The function overwrites its logits, so these are not leaves.
    const at::Tensor expected = consuming_cross_entropy((whole * 1).contiguous(), targets, 4);
    const std::int64_t before = axis.traffic().bytes();
    const at::Tensor loss = consuming_cross_entropy((own * 1).contiguous(), targets, 4, &axis);
    EXPECT_EQ(axis.traffic().bytes() - before, 2 * 5 * 8 * (axis.size() - 1));
    EXPECT_TRUE(testing::close_to(loss, expected, 1e-14));
    for (const double of_rank : dist::all_gather_scalars(axis, {loss.item<double>()})) {
      EXPECT_EQ(of_rank, loss.item<double>());
    }
    expected.backward();
    loss.backward();
    EXPECT_TRUE(testing::close_to(
        own.grad(), TensorPlacement{&axis, 1}.part_of(whole.grad()).contiguous(), 1e-14));
    EXPECT_GT(own.grad().abs().max().item<double>(), 1e-3);
    expect_error(
        [&] {
          consuming_cross_entropy(at::zeros({1, 12 / axis.size()}), testing::longs({12}), 1, &axis);
        },
        {"a target is 12", "0 to 11"});
  });
}

}  // namespace
}  // namespace zero::nn

// The loss that takes its logits away, beside log softmax and a mean.

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/cross_entropy.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using testing::doubles;
using testing::error_of;
using testing::expect_error;
using testing::identical;
using testing::leaf_of;
using testing::longs;
using testing::random;

constexpr std::int64_t kNone = kIgnoredTarget;

// Logits must not be a leaf that is needed afterwards: this gives both.
struct Case {
  Case(const at::Tensor& values, const at::Tensor& targets)
      : x(leaf_of(values.requires_grad() ? values : values.clone().requires_grad_(true))),
        plain_x(leaf_of(x)),
        targets(targets) {}

  at::Tensor ours(std::int64_t terms) {
    logits = x * 1.0;
    return consuming_cross_entropy(logits, targets, terms);
  }
  at::Tensor plain(std::int64_t terms) const {
    const at::Tensor all = (plain_x * 1.0).log_softmax(1);
    at::Tensor sum = all.sum() * 0;
    for (std::int64_t i = 0; i < targets.size(0); ++i) {
      const auto target = targets[i].item<std::int64_t>();
      if (target != kNone) sum = sum - all[i][target];
    }
    return sum / static_cast<double>(std::max<std::int64_t>(terms, 1));
  }

  at::Tensor x, plain_x, targets, logits;
};

// Micro-batches and ranks are weighed by terms that the caller counts: 3 are in this batch.
TEST(CrossEntropy, IsTheMeanOverTheTermsThatItIsGiven) {
  for (const std::int64_t terms : {3, 8}) {
    Case c(random({5, 7}, 1), longs({3, kNone, 0, 6, kNone}));
    const at::Tensor ours = c.ours(terms), plain = c.plain(terms);
    EXPECT_TRUE(close_to(ours, plain));
    EXPECT_EQ(ours.dim(), 0);
    (ours * 2.5).backward();
    (plain * 2.5).backward();
    EXPECT_TRUE(close_to(c.x.grad(), c.plain_x.grad()));
    EXPECT_TRUE(identical(c.x.grad()[1], at::zeros({7}, at::kDouble)));
  }
}

TEST(CrossEntropy, IsZeroWhereEverythingIsIgnored) {
  for (const std::int64_t rows : {0, 3}) {
    Case c(random({rows, 4}, 1), at::full({rows}, kNone));
    const at::Tensor loss = c.ours(0);
    EXPECT_EQ(loss.item<double>(), 0.0);
    loss.backward();
    EXPECT_TRUE(identical(c.x.grad(), at::zeros({rows, 4}, at::kDouble)));
  }
}

// More logits than one block of the implementation, with a last block that is not full.
TEST(CrossEntropy, CutsManyRowsIntoBlocks) {
  const at::Tensor values = random({2600, 1000}, 1);
  Case c(values, at::arange(2600).remainder(1000));
  const at::Tensor loss = c.ours(2600);
  const at::Tensor all = c.plain_x.log_softmax(1);
  const at::Tensor plain = -all.gather(1, c.targets.unsqueeze(1)).mean();
  EXPECT_TRUE(close_to(loss, plain));
  loss.backward();
  plain.backward();
  EXPECT_TRUE(close_to(c.x.grad() * 2600, c.plain_x.grad() * 2600));
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  Case c(doubles({1e4, -1e4, 0.0}).unsqueeze(0), longs({1}));
  const at::Tensor loss = c.ours(1);
  EXPECT_DOUBLE_EQ(loss.item<double>(), 2e4);
  loss.backward();
  EXPECT_TRUE(close_to(c.x.grad(), doubles({1.0, -1.0, 0.0}).unsqueeze(0)));
}

TEST(CrossEntropy, HalfLogitsGiveALossInFloat) {
  const at::Tensor x = random({6, 50}, 1, true, at::kBFloat16);
  const at::Tensor targets = at::arange(6);
  const at::Tensor loss = consuming_cross_entropy(x * 1.0, targets, 6);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const at::Tensor wide = x.detach().to(at::kFloat).requires_grad_(true);
  const at::Tensor plain = -wide.log_softmax(1).gather(1, targets.unsqueeze(1)).mean();
  EXPECT_TRUE(close_to(loss, plain, 1e-5));
  loss.backward();
  plain.backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(close_to(x.grad() * 6, (wide.grad() * 6).to(at::kBFloat16), 1e-2));
}

// One matrix of logits: the gradient takes its place, block by block.
TEST(CrossEntropy, WritesTheGradientOverTheLogits) {
  Case c(random({1500, 4000}, 1, false, at::kFloat), at::arange(1500));
  const at::Tensor loss = c.ours(1500);
  const void* where = c.logits.const_data_ptr();
  const void* seen = nullptr;
  c.logits.register_hook([&](const at::Tensor& gradient) { seen = gradient.const_data_ptr(); });
  c.logits = at::Tensor();
  const std::int64_t before = memory::snapshot().total;
  memory::reset_peaks();
  torch::autograd::backward({loss}, {});
  EXPECT_EQ(seen, where);
  // The gradient of x (the product's own) and less than one matrix more.
  const auto matrix = static_cast<std::int64_t>(c.x.nbytes());
  EXPECT_LT(memory::snapshot().total_peak - before, 2 * matrix);
}

TEST(CrossEntropy, RefusesASecondBackwardAndASecondDerivative) {
  Case c(random({2, 4}, 1), longs({3, 0}));
  const at::Tensor loss = c.ours(2);
  torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
  expect_error([&] { loss.backward(); }, {"backward ran twice"});
  const at::Tensor other = c.ours(2);
  expect_error([&] { torch::autograd::grad({other}, {c.x}, {}, true, /*create_graph=*/true); },
               {"cannot be differentiated twice"});
}

TEST(CrossEntropy, RefusesTargetsThatAreNoClass) {
  for (const std::int64_t target : {4, -1, -99}) {
    Case c(random({1, 4}, 1), longs({target}));
    EXPECT_EQ(
        error_of([&] { c.ours(1); }),
        fmt::format("a target is {}, but must be a class, 0 to 3, or -100 to be ignored", target));
  }
}

}  // namespace
}  // namespace zero::nn

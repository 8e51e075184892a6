// Where gradients are written: fresh or added to, by whom they are provided, and for how long.

#include <gmock/gmock.h>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/gradient_destination.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using testing::identical;
using testing::random;

TEST(GradientDestination, IsFreshWhereThereIsNoGradientAndTheGradientWhereThereIs) {
  const at::Tensor p = random({3, 4}, 1, true);
  const memory::Snapshot before = memory::snapshot();
  const GradientDestination fresh = gradient_destination(p);
  EXPECT_TRUE(fresh.fresh);
  EXPECT_EQ(fresh.tensor.sizes(), p.sizes());
  EXPECT_EQ(fresh.tensor.scalar_type(), p.scalar_type());
  EXPECT_TRUE(fresh.tensor.is_contiguous());
  EXPECT_FALSE(fresh.tensor.requires_grad());
  EXPECT_TRUE(fresh.tensor.is_same(p.grad()));
  EXPECT_EQ(memory::snapshot()[memory::Category::kGradients] - before[memory::Category::kGradients],
            3 * 4 * 8);
  const GradientDestination again = gradient_destination(p);
  EXPECT_FALSE(again.fresh);
  EXPECT_TRUE(again.tensor.is_same(fresh.tensor));
}

struct Provided {
  at::Tensor weight = random({4, 5}, 1, true);
  at::Tensor buffer = at::full({100}, -7.0, at::kDouble);
  int calls = 0;

  Provided() {
    set_gradient_provider(weight, [this] {
      ++calls;
      return buffer.narrow(0, 10, 20).view({4, 5});
    });
  }
  void backward(int uses = 1) const {
    at::Tensor sum = nn::linear(random({3, 5}, 2), weight).square().sum();
    for (int use = 1; use < uses; ++use) {
      sum = sum + nn::linear(random({3, 5}, 2), weight).square().sum();
    }
    sum.backward();
  }
};

TEST(GradientProvider, SaysWhereTheGradientLies) {
  Provided provided;
  provided.backward();
  EXPECT_EQ(provided.calls, 1);
  EXPECT_EQ(provided.weight.grad().const_data_ptr(),
            provided.buffer.narrow(0, 10, 1).const_data_ptr());
  const at::Tensor plain = testing::leaf_of(provided.weight);
  nn::linear(random({3, 5}, 2), plain).square().sum().backward();
  EXPECT_TRUE(identical(provided.weight.grad(), plain.grad()));
  // Not an element beside it.
  EXPECT_TRUE(identical(provided.buffer.narrow(0, 0, 10), at::full({10}, -7.0, at::kDouble)));
  EXPECT_TRUE(identical(provided.buffer.narrow(0, 30, 70), at::full({70}, -7.0, at::kDouble)));
}

TEST(GradientProvider, IsAskedOncePerBackwardThatFindsNoGradient) {
  Provided provided;
  provided.backward(/*uses=*/3);
  EXPECT_EQ(provided.calls, 1);
  const at::Tensor first = provided.weight.grad().clone();
  provided.backward(/*uses=*/3);  // adds to the gradient that is there
  EXPECT_EQ(provided.calls, 1);
  EXPECT_TRUE(close_to(provided.weight.grad(), 2 * first));
  provided.weight.mutable_grad() = at::Tensor();
  provided.backward(/*uses=*/3);  // what the buffer held is overwritten
  EXPECT_EQ(provided.calls, 2);
  EXPECT_TRUE(identical(provided.weight.grad(), first));
}

TEST(GradientProvider, IsReplacedAndRemovedAndNotAskedByOrdinaryAutograd) {
  Provided provided;
  const at::Tensor other = at::zeros({4, 5}, at::kDouble);
  set_gradient_provider(provided.weight, [&] { return other; });
  provided.weight.square().sum().backward();
  EXPECT_TRUE(close_to(provided.weight.grad(), (2 * provided.weight).detach()));
  EXPECT_FALSE(provided.weight.grad().is_same(other));
  provided.weight.mutable_grad() = at::Tensor();
  provided.backward();
  EXPECT_EQ(provided.calls, 0);
  EXPECT_TRUE(provided.weight.grad().is_same(other));
  set_gradient_provider(provided.weight, {});
  provided.weight.mutable_grad() = at::Tensor();
  provided.backward();
  EXPECT_FALSE(provided.weight.grad().is_same(other));
}

TEST(GradientProvider, MustGiveTheShapeAndDtypeOfTheParameter) {
  Provided provided;
  for (const at::Tensor& wrong : {at::zeros({5, 4}, at::kDouble), at::zeros({5, 4}, at::kFloat),
                                  at::zeros({4, 5}, at::kFloat), at::Tensor()}) {
    set_gradient_provider(provided.weight, [wrong] { return wrong; });
    EXPECT_THROW(provided.backward(), c10::Error);
    EXPECT_FALSE(provided.weight.grad().defined());
  }
}

// By identity: not kept alive, and never speaking for another tensor that got the same address. Nor
// does what it holds outlive the parameter for long.
TEST(GradientProvider, EndsWithItsParameter) {
  const memory::Snapshot before = memory::snapshot();
  const auto held = std::make_shared<int>(0);
  for (int i = 0; i < 50; ++i) {
    at::Tensor p = random({64}, 1, true);
    EXPECT_NO_THROW(gradient_destination(p));
    p.mutable_grad().reset();
    set_gradient_provider(p, [held] { return at::Tensor(); });
    EXPECT_LE(held.use_count(), 1 + 3);  // one provider was alive, so there may be three
    EXPECT_THROW(gradient_destination(p), c10::Error);
    EXPECT_NO_THROW(gradient_destination(p.detach()));
  }
  EXPECT_EQ(memory::snapshot().total, before.total);
}

}  // namespace
}  // namespace zero::nn

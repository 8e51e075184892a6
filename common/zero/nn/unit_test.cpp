// When the hooks of units are called.

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <tests/support/tensors.hpp>
#include <zero/nn/layers.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::IsEmpty;
using testing::random;

// x * weight, and says when.
class Scale : public Unit {
 public:
  Scale(std::string name, std::vector<std::string>& said) : name_(std::move(name)), said_(said) {
    weight_ = add_parameter("weight", {3}, Initializer::constant(2.0), at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      said_.push_back(name_ + " body");
      return x * weight_;
    });
  }
  // Two outputs of two inputs; the second output can be left without a gradient.
  std::vector<at::Tensor> forward_two(const at::Tensor& x, const at::Tensor& y,
                                      bool detach_second = false) {
    return run_many([&] {
      const at::Tensor second = y * weight_;
      return std::vector<at::Tensor>{x * weight_, detach_second ? second.detach() : second};
    });
  }
  // What `change` makes of the product, or the input where that is nothing.
  at::Tensor forward_with(const at::Tensor& x,
                          const std::function<at::Tensor(const at::Tensor&)>& change) {
    return run([&] {
      const at::Tensor y = change(x * weight_);
      return y.defined() ? y : x;
    });
  }
  at::Tensor forward_that_throws(const at::Tensor& x) {
    return run([]() -> at::Tensor { throw Error("body"); });
  }
  const std::string& name() const { return name_; }
  const at::Tensor& weight() const { return weight_; }

 private:
  std::string name_;
  std::vector<std::string>& said_;
  at::Tensor weight_;
};

// A unit with a unit inside.
class Outer : public Scale {
 public:
  explicit Outer(std::vector<std::string>& said) : Scale("outer", said) {
    inner = register_module("inner", std::make_shared<Scale>("inner", said));
  }
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return inner->forward(x * 3) * weight(); });
  }
  at::Tensor hand_on(const at::Tensor& x) {
    return run([&] { return inner->forward(x * weight()); });
  }
  at::Tensor pass(const at::Tensor& x) {
    return run([&] { return x; });
  }
  std::shared_ptr<Scale> inner;
};

class Units : public ::testing::Test, public UnitHooks {
 protected:
  Units() { watch(a); }
  // Gives a model its first values and calls for all of its units.
  void watch(Unit& unit) {
    SeededValues values(1);
    initialize_parameters(unit, values);
    set_hooks(unit, this);
  }
  void pre_forward(Unit& unit) override { say(unit, "pre forward"); }
  void post_forward(Unit& unit) override { say(unit, "post forward"); }
  void pre_backward(Unit& unit) override { say(unit, "pre backward"); }

  std::vector<std::string> take() { return std::exchange(said, {}); }

  std::vector<std::string> said;
  Scale a{"a", said};

 private:
  void say(Unit& unit, const std::string& what) {
    said.push_back(dynamic_cast<Scale&>(unit).name() + " " + what);
  }
};

// A leaf whose gradient can be had from autograd in full, that is, not a leaf.
at::Tensor input(std::uint64_t seed) { return random({2, 3}, seed, /*gradient=*/true) * 1.0; }

TEST_F(Units, HooksStandAroundForwardAndBackwardWhichVisitsThemInReverse) {
  Scale b("b", said);
  watch(b);
  on_gradient_ready(a.weight(), [this] { said.push_back("gradient"); });
  const at::Tensor y = b.forward(a.forward(input(1)));
  EXPECT_THAT(take(), ElementsAre("a pre forward", "a body", "a post forward", "b pre forward",
                                  "b body", "b post forward"));
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("b pre backward", "a pre backward", "gradient"));
}

TEST_F(Units, InnerHooksStandWithinOuterOnes) {
  Outer outer(said);
  watch(outer);  // and the inner one
  EXPECT_EQ(outer.hooks(), this);
  EXPECT_EQ(outer.inner->hooks(), this);
  const at::Tensor y = outer.forward(input(1));
  EXPECT_THAT(take(), ElementsAre("outer pre forward", "inner pre forward", "inner body",
                                  "inner post forward", "outer post forward"));
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("outer pre backward", "inner pre backward"));
}

TEST_F(Units, UsedTwiceTheyAreCalledForEachUse) {
  int ready = 0;
  on_gradient_ready(a.weight(), [&] { ++ready; });
  const at::Tensor y = a.forward(a.forward(input(1)).tanh());
  take();
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("a pre backward", "a pre backward"));
  EXPECT_EQ(ready, 1);
}

TEST_F(Units, WithoutAGraphThereIsNoBackward) {
  const at::Tensor x = random({2, 3}, 1, true);
  {
    const c10::NoGradGuard no_grad;
    a.forward(x);
  }
  EXPECT_THAT(take(), ElementsAre("a pre forward", "a body", "a post forward"));
  x.sum().backward();  // no hook was left on the input
  EXPECT_THAT(take(), IsEmpty());
}

TEST_F(Units, WhatNeedsNoGradientIsNotWatched) {
  const at::Tensor y = a.forward(random({2, 3}, 1));
  take();
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("a pre backward"));
  const auto outputs = a.forward_two(input(1), random({2, 3}, 2), /*detach_second=*/true);
  take();
  EXPECT_FALSE(outputs[1].requires_grad());
  outputs[0].sum().backward();
  EXPECT_THAT(take(), ElementsAre("a pre backward"));
}

TEST_F(Units, AUseWithSeveralOutputsBeginsItsBackwardOnce) {
  const auto outputs = a.forward_two(input(1), input(2));
  take();
  // The second output's gradient is known long before the first's.
  const at::Tensor far = outputs[0].tanh().tanh().tanh();
  (far + outputs[1]).sum().backward();
  EXPECT_THAT(take(), ElementsAre("a pre backward"));
}

TEST_F(Units, BackwardBeginsOutsideAlsoWhereAnOutputIsHandedOn) {
  Outer outer(said);
  watch(outer);
  const auto begun_by = [this](const at::Tensor& output) {
    output.sum().backward();
    std::vector<std::string> order = take();
    std::erase_if(order, [](const std::string& s) { return !s.ends_with("pre backward"); });
    return order;
  };
  EXPECT_THAT(begun_by(outer.hand_on(a.forward(input(1)))),
              ElementsAre("outer pre backward", "inner pre backward", "a pre backward"));
  // A unit that does nothing to its input.
  EXPECT_THAT(begun_by(outer.pass(a.forward(input(1)))),
              ElementsAre("outer pre backward", "a pre backward"));
}

TEST_F(Units, HooksRemovedAfterForwardAreNotCalledInBackward) {
  const at::Tensor y = a.forward(input(1));
  a.set_hooks(nullptr);
  take();
  y.sum().backward();
  a.forward(input(1)).sum().backward();
  EXPECT_THAT(take(), ElementsAre("a body"));
}

TEST_F(Units, WhatABodyThrowsComesOut) {
  EXPECT_EQ(error_of([&] { a.forward_that_throws(input(1)); }), "body");
  EXPECT_THAT(take(), ElementsAre("a pre forward"));
}

// What backward needs of the output is not changed unnoticed: tanh() keeps its result. (That other
// outputs may be changed, the programs of tests/fuzz show in every mode.)
TEST_F(Units, AChangeInPlaceOfWhatBackwardNeedsIsAnError) {
  at::Tensor output = a.forward_with(input(1), [](const at::Tensor& x) { return x.tanh(); });
  output.relu_();
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

// An operation that changes a view in place takes the place of the view's own.
TEST_F(Units, AnOutputThatSharesBytesMayBeChangedInPlace) {
  const auto flat = [](const at::Tensor& x) { return x.view({-1}); };
  const auto none = [](const at::Tensor&) { return at::Tensor(); };
  for (const auto& change : {std::function<at::Tensor(const at::Tensor&)>(flat), {none}}) {
    const at::Tensor leaf = random({2, 3}, 1, /*gradient=*/true), x = leaf * 1.0;
    at::Tensor output = a.forward_with(x, change);
    output.relu_();
    take();
    output.sum().backward();
    EXPECT_THAT(take(), ElementsAre("a pre backward"));
    const double factor = output.dim() == 1 ? 2 : 1;  // else it is the input
    EXPECT_TRUE(testing::identical(leaf.grad(), (leaf > 0).to(at::kDouble) * factor));
  }
}

// What the last operation has saved of its result leads to the same output.
TEST_F(Units, AnOutputIsTheResultOfTheBodyForHooksAndGradients) {
  const at::Tensor x = input(1);
  const auto tanh = [](const at::Tensor& y) { return y.tanh(); };
  const auto second_gradient = [&](const at::Tensor& y) {
    y.register_hook([](const at::Tensor& gradient) { return gradient * 1.25; });
    const auto grad = [](const at::Tensor& of, const at::Tensor& to) {
      return torch::autograd::grad({of.square().sum()}, {to}, {}, true, /*create_graph=*/true)[0];
    };
    return std::vector{grad(grad(y, x), x), grad(grad(y, x), y)};
  };
  const auto with = second_gradient(a.forward_with(x, tanh));
  EXPECT_THAT(take(), Contains("a pre backward"));
  const auto without = second_gradient((x * a.weight()).tanh());
  EXPECT_TRUE(testing::identical(with[0], without[0]));
  EXPECT_TRUE(testing::identical(with[1], without[1]));
}

// autograd::grad() may run over a graph before backward() does.
TEST_F(Units, AreCalledInEachPassOverAGraph) {
  const at::Tensor x = input(1);
  const at::Tensor y = a.forward(x).sum();
  take();
  for (int pass = 0; pass < 3; ++pass) {
    torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true);
    EXPECT_THAT(take(), ElementsAre("a pre backward")) << pass;
  }
}

struct ThrowingHooks : UnitHooks {
  void pre_backward(Unit&) override { throw Error("no parameters"); }
};

TEST_F(Units, WhatAHookThrowsLeavesBackward) {
  ThrowingHooks hooks;
  a.set_hooks(&hooks);
  const at::Tensor y = a.forward(input(1)).sum();
  EXPECT_EQ(error_of([&] { y.backward(); }), "no parameters");
}

}  // namespace
}  // namespace zero::nn

// When the hooks of units are called.

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <tests/support/tensors.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/layers.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {
namespace {

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
    return run(
        [&] {
          said_.push_back(name_ + " body");
          return x * weight_;
        },
        {x});
  }
  // Two outputs of two inputs; the second output can be left without a gradient.
  std::vector<at::Tensor> forward_two(const at::Tensor& x, const at::Tensor& y,
                                      bool detach_second = false) {
    return run_many(
        [&] {
          const at::Tensor second = y * weight_;
          return std::vector<at::Tensor>{x * weight_, detach_second ? second.detach() : second};
        },
        {x, y});
  }
  // What `change` makes of the product, or the input where that is nothing.
  at::Tensor forward_with(const at::Tensor& x,
                          const std::function<at::Tensor(const at::Tensor&)>& change) {
    return run(
        [&] {
          const at::Tensor y = change(x * weight_);
          return y.defined() ? y : x;
        },
        {x});
  }
  at::Tensor forward_that_throws(const at::Tensor& x) {
    return run([]() -> at::Tensor { throw Error("body"); }, {x});
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
    return run([&] { return inner->forward(x * 3) * weight(); }, {x});
  }
  at::Tensor hand_on(const at::Tensor& x) {
    return run([&] { return inner->forward(x * weight()); }, {x});
  }
  at::Tensor pass(const at::Tensor& x) {
    return run([&] { return x; }, {x});
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
  void post_backward(Unit& unit) override { say(unit, "post backward"); }

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

TEST_F(Units, HooksStandAroundForwardAndBackward) {
  on_gradient_ready(a.weight(), [this] { said.push_back("gradient"); });
  const at::Tensor y = a.forward(input(1));
  EXPECT_THAT(take(), ElementsAre("a pre forward", "a body", "a post forward"));
  y.sum().backward();
  // The parameter's gradient may come before or after the input's: both follow pre_backward.
  const std::vector<std::string> backward = take();
  EXPECT_THAT(backward,
              ::testing::UnorderedElementsAre("a pre backward", "gradient", "a post backward"));
  EXPECT_EQ(backward.front(), "a pre backward");
}

// Parts that have no hooks of their own too.
TEST_F(Units, CannotBeCastOrMovedByOthersWhileAStrategyHasThem) {
  Outer unit(said);
  const auto part =
      unit.register_module("part", std::make_shared<Linear>(2, 3, Initializer::constant(1.0)));
  set_holder(unit, "zero1");
  for (torch::nn::Module* module :
       {static_cast<torch::nn::Module*>(&unit), static_cast<torch::nn::Module*>(unit.inner.get()),
        static_cast<torch::nn::Module*>(part.get())}) {
    const auto refused = ::testing::HasSubstr("before the strategy is made");
    EXPECT_THAT(error_of([&] { module->to(at::kHalf); }), refused);
    EXPECT_THAT(error_of([&] { module->to(at::kCPU); }), refused);
    EXPECT_THAT(error_of([&] { module->to(at::kCPU, at::kHalf); }), refused);
  }
  EXPECT_EQ(unit.weight().scalar_type(), at::kDouble);
  EXPECT_EQ(unit.inner->weight().scalar_type(), at::kDouble);
  set_holder(unit, "");
  unit.to(at::kHalf);
  EXPECT_EQ(unit.weight().scalar_type(), at::kHalf);
  EXPECT_EQ(unit.inner->weight().scalar_type(), at::kHalf);
  EXPECT_EQ(part->parameters().front().scalar_type(), at::kHalf);
}

TEST_F(Units, BackwardVisitsThemInReverse) {
  Scale b("b", said);
  watch(b);
  const at::Tensor y = b.forward(a.forward(input(1)));
  EXPECT_THAT(take(), ElementsAre("a pre forward", "a body", "a post forward", "b pre forward",
                                  "b body", "b post forward"));
  y.sum().backward();
  // The gradient between them says both: b's inputs are done, and then a's output is known.
  EXPECT_THAT(take(), ElementsAre("b pre backward", "b post backward", "a pre backward",
                                  "a post backward"));
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
  EXPECT_THAT(take(), ElementsAre("outer pre backward", "inner pre backward", "inner post backward",
                                  "outer post backward"));
}

TEST_F(Units, UsedTwiceTheyAreCalledForEachUse) {
  int ready = 0;
  on_gradient_ready(a.weight(), [&] { ++ready; });
  const at::Tensor y = a.forward(a.forward(input(1)).tanh());
  take();
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("a pre backward", "a post backward", "a pre backward",
                                  "a post backward"));
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
  EXPECT_THAT(take(), ElementsAre("a pre backward", "a post backward"));
}

TEST_F(Units, PostBackwardWaitsForAllInputsThatNeedAGradient) {
  const at::Tensor x = input(1), y = input(2);
  y.register_hook([this](const at::Tensor&) { said.push_back("second input"); });
  x.register_hook([this](const at::Tensor&) { said.push_back("first input"); });
  const auto outputs = a.forward_two(x, y);
  take();
  // The second output's gradient is known long before the first's.
  const at::Tensor far = outputs[0].tanh().tanh().tanh();
  (far + outputs[1]).sum().backward();
  const std::vector<std::string> order = take();
  ASSERT_EQ(order.size(), 4U);
  EXPECT_EQ(std::count(order.begin(), order.end(), "a pre backward"), 1);  // one use begins once
  EXPECT_EQ(std::count(order.begin(), order.end(), "a post backward"), 1);
  EXPECT_EQ(order.back(), "a post backward");
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
// outputs may be changed, tests/matrix/autograd_test.cpp checks in every mode.)
TEST_F(Units, AChangeInPlaceOfWhatBackwardNeedsIsAnError) {
  at::Tensor output = a.forward_with(input(1), [](const at::Tensor& x) { return x.tanh(); });
  output.relu_();
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

// Others read the same bytes, and autograd would not know.
TEST_F(Units, AnOutputThatIsAnInputIsNotChangedInPlace) {
  const at::Tensor x = input(1) * 2;
  at::Tensor same = a.forward_with(x, [](const at::Tensor&) { return at::Tensor(); });
  EXPECT_THROW(same.relu_(), c10::Error);
}

// autograd::grad() may run over a graph before backward() does.
TEST_F(Units, AreCalledInEachPassOverAGraph) {
  const at::Tensor x = input(1);
  const at::Tensor y = a.forward(x).sum();
  take();
  for (int pass = 0; pass < 3; ++pass) {
    torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true);
    EXPECT_THAT(take(), ElementsAre("a pre backward", "a post backward")) << pass;
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

// Layers as units of their own: when their hooks are called, and what belongs to them.
Initializer normal() { return Initializer::normal(0.5); }

// Two layers that read the same input, one that is used twice, and a parameter of its own.
class Forked : public Unit {
 public:
  Forked() {
    gain_ = add_parameter("gain", {4}, Initializer::constant(1.5), at::kDouble);
    left_ = register_module("left", std::make_shared<Linear>(4, 4, normal(), at::kDouble));
    right_ = register_module("right", std::make_shared<Linear>(4, 4, normal(), at::kDouble));
    table_ = register_module("table", std::make_shared<Embedding>(5, 4, normal(), at::kDouble));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids) {
    return run([&] { return body(x, ids); }, {x});
  }
  at::Tensor body(const at::Tensor& x, const at::Tensor& ids) {
    const at::Tensor looked_up = table_->forward(ids);
    const at::Tensor y = x * gain_ + looked_up;
    const at::Tensor left = left_->forward(y);
    return table_->as_head(left + right_->forward(y));
  }
  const std::shared_ptr<Linear>& left() const { return left_; }

 private:
  at::Tensor gain_;
  std::shared_ptr<Linear> left_, right_;
  std::shared_ptr<Embedding> table_;
};

class Leaves : public ::testing::Test, public UnitHooks {
 protected:
  Leaves() {
    SeededValues values(3);
    initialize_parameters(model, values);
    for (const UnitInfo& info : list_parameters(model, Granularity::kLeaf).units) {
      names[info.unit] = info.name.empty() ? "root" : info.name;
    }
  }
  ~Leaves() override { set_hooks(model, nullptr); }

  void pre_forward(Unit& unit) override { said.push_back(names.at(&unit) + " forward"); }
  void post_forward(Unit& unit) override { said.push_back(names.at(&unit) + " done"); }
  void pre_backward(Unit& unit) override { said.push_back(names.at(&unit) + " backward"); }
  void post_backward(Unit& unit) override { said.push_back(names.at(&unit) + " passed"); }

  std::vector<std::string> take() { return std::exchange(said, {}); }

  Forked model;
  at::Tensor x = random({3, 4}, 1, /*requires_grad=*/true);
  at::Tensor ids = testing::longs({4, 0, 4});
  std::map<Unit*, std::string> names;
  std::vector<std::string> said;
};

TEST_F(Leaves, AreUnitsOnlyForThoseWhoAskForThem) {
  EXPECT_EQ(list_parameters(model).units.size(), 1U);
  const ParameterList list = list_parameters(model, Granularity::kLeaf);
  std::vector<std::string> units, unit_of_parameter;
  for (const UnitInfo& info : list.units) units.push_back(info.name);
  for (const Parameter& p : list.parameters) unit_of_parameter.push_back(list.units[p.unit].name);
  EXPECT_THAT(units, ElementsAre("", "left", "right", "table"));
  EXPECT_THAT(unit_of_parameter, ElementsAre("", "left", "right", "table"));
}

TEST_F(Leaves, AWeightOfTwoLeavesBelongsToTheUnitAroundBoth) {
  model.left()->register_parameter("second", model.named_parameters()["right.weight"]);
  const ParameterList list = list_parameters(model, Granularity::kLeaf);
  for (const Parameter& p : list.parameters) {
    const bool shared = p.name == "left.second" || p.name == "right.weight";
    EXPECT_EQ(p.unit == 0U, shared || p.name == "gain") << p.name;
  }
  Forked another;
  EXPECT_EQ(list.size(), list_parameters(another).size());
}

TEST_F(Leaves, HaveHooksAroundEachUse) {
  set_hooks(model, this, Granularity::kLeaf);
  const at::Tensor y = model.forward(x, ids);
  EXPECT_THAT(take(), ElementsAre("root forward", "table forward", "table done", "left forward",
                                  "left done", "right forward", "right done", "table forward",
                                  "table done", "root done"));
  y.sum().backward();
  // What reads the same input is over one after the other, not when the last of them is.
  EXPECT_THAT(take(), ElementsAre("root backward", "table backward", "table passed",
                                  "right backward", "right passed", "left backward", "left passed",
                                  "root passed", "table backward"));
}

TEST_F(Leaves, HaveNoneWithoutBeingAskedFor) {
  set_hooks(model, this, Granularity::kLeaf);
  set_hooks(model, this);
  model.forward(x, ids).sum().backward();
  EXPECT_THAT(take(), ElementsAre("root forward", "root done", "root backward", "root passed"));
}

TEST_F(Leaves, RunOnceMoreInACheckpoint) {
  set_hooks(model, this, Granularity::kLeaf);
  const at::Tensor y = checkpoint(
      [this](const std::vector<at::Tensor>& in) { return model.left()->forward(in[0]); }, {x});
  EXPECT_THAT(take(), ElementsAre("left forward", "left done"));
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("left forward", "left done", "left backward", "left passed"));
}

TEST_F(Leaves, HaveNoBackwardHooksWithoutAGraph) {
  set_hooks(model, this, Granularity::kLeaf);
  const c10::NoGradGuard no_grad;
  model.left()->forward(x);
  EXPECT_THAT(take(), ElementsAre("left forward", "left done"));
}

}  // namespace
}  // namespace zero::nn

// What a model's parameters are, and when their gradients are ready.

#include <gmock/gmock.h>

#include <set>

#include <tests/support/tensors.hpp>
#include <tests/support/test_unit.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::identical;
using testing::random;
using testing::TestUnit;

class PlainModule : public torch::nn::Module {};

std::vector<std::string> names(const ParameterList& list, const std::vector<std::size_t>& indices) {
  std::vector<std::string> result;
  for (const std::size_t i : indices) result.push_back(list.parameters[i].name);
  return result;
}

TEST(ListParameters, GoesByRegistrationAndUnitsHoldWhatIsInnermost) {
  TestUnit root;
  root.add("first", {2, 3});
  auto a = root.add_unit("a");
  a->add("weight", {4});
  auto plain = a->register_module("plain", std::make_shared<PlainModule>());
  plain->register_parameter("inside", random({5}, 1));
  auto inner = a->add_unit("inner");
  inner->add("weight", {6});
  auto b = root.add_unit("b");
  b->add("weight", {7}, Initializer::normal(1), at::kFloat);

  const ParameterList list = list_parameters(root);
  ASSERT_EQ(list.size(), 5U);
  EXPECT_THAT(names(list, {0, 1, 2, 3, 4}),
              ElementsAre("first", "a.weight", "a.plain.inside", "a.inner.weight", "b.weight"));
  ASSERT_EQ(list.units.size(), 4U);
  EXPECT_EQ(list.units[0].unit, &root);
  EXPECT_EQ(list.units[0].name, "");
  EXPECT_EQ(list.units[1].name, "a");
  EXPECT_EQ(list.units[2].name, "a.inner");
  EXPECT_EQ(list.units[2].unit, inner.get());
  EXPECT_EQ(list.units[3].name, "b");
  EXPECT_THAT(names(list, list.units[0].parameters), ElementsAre("first"));
  EXPECT_THAT(names(list, list.units[1].parameters), ElementsAre("a.weight", "a.plain.inside"));
  EXPECT_THAT(names(list, list.units[2].parameters), ElementsAre("a.inner.weight"));
  EXPECT_THAT(names(list, list.units[3].parameters), ElementsAre("b.weight"));
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    for (const std::size_t i : list.units[u].parameters) EXPECT_EQ(list.parameters[i].unit, u);
  }
  EXPECT_EQ(list.numel(), 6 + 4 + 5 + 6 + 7);
  EXPECT_EQ(list.bytes(), 8 * (6 + 4 + 5 + 6) + 4 * 7);
  EXPECT_TRUE(list.parameters[1].initializer.has_value());
  EXPECT_FALSE(list.parameters[2].initializer.has_value());
}

// root { a { a1, a2 }, b }: where a tied parameter has to be whole.
struct Family {
  Family() {
    a = root.add_unit("a");
    a1 = a->add_unit("a1");
    a2 = a->add_unit("a2");
    b = root.add_unit("b");
    for (const auto& part : {a1, a2, b}) part->add("own", {1});
  }
  // The unit of a parameter that is first registered in `first` and then in each of `others`.
  std::string unit_of(TestUnit& first, const std::vector<TestUnit*>& others) {
    const at::Tensor tied = first.add("tied", {3});
    for (TestUnit* other : others) other->register_parameter("again", tied, true);
    const ParameterList list = list_parameters(root);
    std::string unit;
    int listed = 0;
    for (const Parameter& p : list.parameters) {
      if (!p.tensor.is_same(tied)) continue;
      ++listed;
      unit = list.units[p.unit].name;
      EXPECT_THAT(names(list, list.units[p.unit].parameters), ::testing::Contains(p.name));
    }
    EXPECT_EQ(listed, 1);
    EXPECT_EQ(list.numel(), 3 + 3);
    return unit;
  }
  TestUnit root;
  std::shared_ptr<TestUnit> a, a1, a2, b;
};

TEST(TiedParameters, AreListedOnceInTheInnermostUnitAroundAllPlaces) {
  const auto unit = [](auto places) {
    Family family;
    return places(family);
  };
  EXPECT_EQ(unit([](Family& f) { return f.unit_of(*f.a1, {f.a1.get()}); }), "a.a1");
  EXPECT_EQ(unit([](Family& f) { return f.unit_of(*f.a1, {f.a2.get()}); }), "a");
  EXPECT_EQ(unit([](Family& f) { return f.unit_of(*f.a, {f.a2.get()}); }), "a");
  EXPECT_EQ(unit([](Family& f) { return f.unit_of(*f.a1, {f.b.get()}); }), "");
  EXPECT_EQ(unit([](Family& f) { return f.unit_of(*f.a1, {f.a2.get(), f.b.get()}); }), "");
  EXPECT_EQ(unit([](Family& f) { return f.unit_of(f.root, {f.b.get()}); }), "");
}

TEST(TiedParameters, HaveTheirFirstName) {
  Family family;
  const at::Tensor tied = family.a1->add("tied", {3});
  family.b->register_parameter("again", tied, true);
  const ParameterList list = list_parameters(family.root);
  std::set<std::string> all;
  for (const Parameter& p : list.parameters) all.insert(p.name);
  EXPECT_TRUE(all.contains("a.a1.tied"));
  EXPECT_FALSE(all.contains("b.again"));
}

TEST(ListParameters, RefusesWhatCannotBeSharded) {
  TestUnit not_contiguous;
  not_contiguous.register_parameter("turned", random({3, 4}, 1).t());
  EXPECT_THAT(error_of([&] { list_parameters(not_contiguous); }),
              AllOf(HasSubstr("'turned' is not contiguous"), HasSubstr("strides 1,4")));

  TestUnit overlapping;
  const at::Tensor all = random({10}, 1);
  overlapping.register_parameter("front", all.narrow(0, 0, 6));
  overlapping.add_unit("inner")->register_parameter("back", all.narrow(0, 4, 6));
  EXPECT_THAT(error_of([&] { list_parameters(overlapping); }),
              AllOf(HasSubstr("'front' and 'inner.back'"), HasSubstr("same memory")));

  TestUnit empty;
  EXPECT_THAT(error_of([&] { list_parameters(empty); }),
              HasSubstr("no trainable parameter (0 parameters"));
  TestUnit frozen;
  frozen.add("weight", {3}).requires_grad_(false);
  EXPECT_THAT(error_of([&] { list_parameters(frozen); }),
              HasSubstr("no trainable parameter (1 parameters"));
  frozen.add("one_that_is", {});
  EXPECT_EQ(list_parameters(frozen).size(), 2U);
}

// Two parameters without bytes do not share any.
TEST(ListParameters, TakesDeferredParametersForDifferentOnes) {
  const DeferredStorage deferred;
  TestUnit root;
  root.add("a", {3});
  root.add("b", {3});
  EXPECT_EQ(list_parameters(root).size(), 2U);
}

TEST(SetHooks, ReachesEveryUnit) {
  Family family;
  UnitHooks hooks;
  set_hooks(family.root, &hooks);
  for (TestUnit* part : {&family.root, family.a.get(), family.a1.get(), family.b.get()}) {
    EXPECT_EQ(part->hooks(), &hooks);
  }
  set_hooks(family.root, nullptr);
  EXPECT_EQ(family.a2->hooks(), nullptr);
}

TEST(OnGradientReady, IsCalledOncePerBackwardAfterTheLastUse) {
  const at::Tensor p = random({4, 4}, 1, true), x = random({2, 4}, 2);
  std::vector<at::Tensor> seen;
  on_gradient_ready(p, [&] { seen.push_back(p.grad().clone()); });
  const auto loss = [&](const at::Tensor& w) {
    return (nn::linear(nn::linear(x, w), w) + x.matmul(w)).square().sum();
  };
  loss(p).backward();
  const at::Tensor plain = testing::leaf_of(p);
  loss(plain).backward();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_TRUE(identical(seen[0], plain.grad()));
  loss(p).backward();
  EXPECT_EQ(seen.size(), 2U);
}

// A loss that reaches the parameter only through a use that gives nothing.
struct GivesNothing : torch::autograd::Function<GivesNothing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(OnGradientReady, IsCalledWithAnUndefinedGradientAndNotForUnusedParameters) {
  const at::Tensor p = random({3}, 1, true), unused = random({3}, 2, true);
  int calls = 0, unused_calls = 0;
  on_gradient_ready(p, [&] {
    ++calls;
    EXPECT_FALSE(p.grad().defined());
  });
  on_gradient_ready(unused, [&] { ++unused_calls; });
  GivesNothing::apply(p).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(unused_calls, 0);
}

TEST(OnGradientReady, IsReplacedAndRemovedAndMayDropTheGradient) {
  const at::Tensor p = random({3}, 1, true);
  int first = 0, second = 0;
  on_gradient_ready(p, [&] { ++first; });
  on_gradient_ready(p, [&] {
    ++second;
    p.mutable_grad() = at::Tensor();
  });
  p.sum().backward();
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
  EXPECT_FALSE(p.grad().defined());
  on_gradient_ready(p, {});
  p.sum().backward();
  EXPECT_EQ(second, 1);
  EXPECT_TRUE(p.grad().defined());
}

}  // namespace
}  // namespace zero::nn

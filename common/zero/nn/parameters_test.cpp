// What a model's parameters are, and when their gradients are ready.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <thread>

#include <tests/support/tensors.hpp>
#include <tests/support/test_unit.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
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
  std::vector<std::string> units;
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    units.push_back(list.units[u].name + ": " +
                    fmt::format("{}", fmt::join(names(list, list.units[u].parameters), " ")));
    for (const std::size_t i : list.units[u].parameters) EXPECT_EQ(list.parameters[i].unit, u);
  }
  EXPECT_THAT(units, ElementsAre(": first", "a: a.weight a.plain.inside", "a.inner: a.inner.weight",
                                 "b: b.weight"));
  EXPECT_EQ(list.units[0].unit, &root);
  EXPECT_EQ(list.units[2].unit, inner.get());
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
      EXPECT_THAT(p.name, ::testing::EndsWith("tied")) << "not its first name";
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

// Two parameters without bytes do not share any.
TEST(ListParameters, TakesDeferredParametersForDifferentOnes) {
  const auto root = defer([] {
    auto unit = std::make_shared<TestUnit>();
    unit->add("a", {3});
    unit->add("b", {3});
    return unit;
  });
  EXPECT_EQ(list_parameters(*root).size(), 2U);
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

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(std::vector<std::string>& said) : said(said) {}
  void operator()(const at::Tensor&) override { said.emplace_back("hook"); }
  std::vector<std::string>& said;
};

// A hook of the program's own comes first, and is there when the callback is gone.
TEST(OnGradientReady, KeepsAHookThatWasThere) {
  const at::Tensor p = random({3}, 1, true);
  std::vector<std::string> said;
  const auto set = [&] {
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<CountingHook>(said));
  };
  const auto said_in_backward = [&] {
    p.sum().backward();
    return std::exchange(said, {});
  };
  set();
  for (int again = 0; again < 2; ++again) {
    on_gradient_ready(p, [&] { said.emplace_back("callback"); });
    EXPECT_TRUE(calls_on_gradient_ready(p));
    EXPECT_THAT(said_in_backward(), ElementsAre("hook", "callback"));
  }
  on_gradient_ready(p, {});
  EXPECT_FALSE(calls_on_gradient_ready(p));
  EXPECT_THAT(said_in_backward(), ElementsAre("hook"));
  on_gradient_ready(p, [&] { said.emplace_back("callback"); });
  set();
  EXPECT_FALSE(calls_on_gradient_ready(p));
  EXPECT_THAT(said_in_backward(), ElementsAre("hook"));
}

at::Tensor value_of(const std::string& name, std::uint64_t seed,
                    Initializer initializer = Initializer::normal(1.0)) {
  TestUnit root;
  const at::Tensor p = root.add(name, {50}, initializer);
  SeededValues values(seed);
  initialize_parameters(root, values);
  return p.detach();
}

TEST(SeededValues, DifferByNameAndSeedAndByNothingElse) {
  const at::Tensor once = value_of("weight", 1);
  EXPECT_TRUE(identical(value_of("weight", 1), once));
  EXPECT_FALSE(identical(value_of("weight", 2), once));
  EXPECT_FALSE(identical(value_of("bias", 1), once));

  // In another model, after others, and drawn in another order.
  TestUnit root;
  root.add("before", {7});
  const at::Tensor p = root.add("weight", {50});
  ParameterList list = list_parameters(root);
  SeededValues values(1);
  values.fill(list.parameters[1], list.parameters[1].tensor);
  EXPECT_TRUE(identical(p.detach(), once));
  values.fill(list.parameters[0], list.parameters[0].tensor);
  values.fill(list.parameters[1], list.parameters[1].tensor);
  EXPECT_TRUE(identical(p.detach(), once));
  // Into a tensor beside the parameter.
  at::Tensor out = at::zeros({50}, at::kDouble);
  values.fill(list.parameters[1], out);
  EXPECT_TRUE(identical(out, once));
}

TEST(SeededValues, FollowTheInitializer) {
  EXPECT_TRUE(
      identical(value_of("w", 1, Initializer::constant(0.25)), at::full({50}, 0.25, at::kDouble)));
  const at::Tensor uniform = value_of("w", 1, Initializer::uniform(0.5));
  EXPECT_LT(uniform.max().item<double>(), 0.5);
  EXPECT_GE(uniform.min().item<double>(), -0.5);
  EXPECT_GT(uniform.max().item<double>(), 0.3);
  EXPECT_LT(uniform.min().item<double>(), -0.3);
  EXPECT_TRUE(testing::close_to(value_of("w", 1, Initializer::normal(3.0)),
                                3.0 * value_of("w", 1, Initializer::normal(1.0)), 1e-12));
  TestUnit root;
  const at::Tensor many = root.add("many", {100000}, Initializer::normal(2.0));
  SeededValues values(1);
  initialize_parameters(root, values);
  EXPECT_NEAR(many.mean().item<double>(), 0.0, 0.05);
  EXPECT_NEAR(many.std().item<double>(), 2.0, 0.05);
}

TEST(SeededValues, LeaveWhatHasNoInitializerOrSayThatItHasNoValues) {
  TestUnit root;
  root.add("trained", {1});
  const at::Tensor p = random({4}, 1, true);
  root.register_parameter("own", p);
  SeededValues values(1);
  initialize_parameters(root, values);
  EXPECT_TRUE(identical(p.detach(), random({4}, 1)));
  ParameterList list = list_parameters(root);
  at::Tensor out = at::zeros({4}, at::kDouble);
  values.fill(list.parameters[1], out);
  EXPECT_TRUE(identical(out, random({4}, 1)));

  TestUnit bare;
  bare.register_parameter("bare", memory::without_storage({4}, at::kDouble));
  ParameterList without = list_parameters(bare);
  expect_error([&] { values.fill(without.parameters[0], out); },
               {"'bare' has no values and no initializer"});
}

TEST(InitializeParameters, GivesBytesAndRecordsNothing) {
  at::Tensor p;
  const auto root = defer([&] {
    auto unit = std::make_unique<TestUnit>();
    p = unit->add("weight", {100});
    return unit;
  });
  const memory::Snapshot before = memory::snapshot();
  SeededValues values(1);
  initialize_parameters(*root, values);
  EXPECT_EQ(
      memory::snapshot()[memory::Category::kParameters] - before[memory::Category::kParameters],
      800);
  EXPECT_TRUE(p.requires_grad());
  EXPECT_TRUE(p.is_leaf());
  EXPECT_EQ(p._version(), 0);
}

TEST(Defer, BelongsToItsThread) {
  const auto has_bytes = [] { return memory::has_storage(TestUnit().add("weight", {3})); };
  defer([&] {
    EXPECT_FALSE(has_bytes());
    bool elsewhere = false;
    std::thread([&] { elsewhere = has_bytes(); }).join();
    EXPECT_TRUE(elsewhere);
    return std::make_unique<TestUnit>();
  });
  EXPECT_TRUE(has_bytes());
}

}  // namespace
}  // namespace zero::nn

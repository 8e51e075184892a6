// Where the first values of parameters come from.

#include <gmock/gmock.h>

#include <tests/support/tensors.hpp>
#include <tests/support/test_unit.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::identical;
using testing::random;
using testing::TestUnit;

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
  EXPECT_THAT(error_of([&] { values.fill(without.parameters[0], out); }),
              HasSubstr("'bare' has no values and no initializer"));
}

TEST(InitializeParameters, GivesBytesAndRecordsNothing) {
  std::unique_ptr<TestUnit> root;
  at::Tensor p;
  {
    const DeferredStorage deferred;
    root = std::make_unique<TestUnit>();
    p = root->add("weight", {100});
  }
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

}  // namespace
}  // namespace zero::nn
